"""Protocol, flow control and discovery without sockets, clocks or threads."""
