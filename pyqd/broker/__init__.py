"""Topics and channels: delivery and redelivery of messages; no sockets."""
