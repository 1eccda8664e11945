"""Ground floor: errors, names and options; no files, no sockets, no topics."""
