"""Connections of NSQ clients: commands, IDENTIFY, AUTH, upgrades."""
