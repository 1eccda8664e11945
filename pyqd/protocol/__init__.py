"""Connections: commands, negotiation, transports, delivery."""
