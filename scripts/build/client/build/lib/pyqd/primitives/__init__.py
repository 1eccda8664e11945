"""Ground layer: errors, names, durations, logging; no files, no sockets, no topics."""
