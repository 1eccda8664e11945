"""Topics and channels: who gets which message, when it comes again; no sockets."""
