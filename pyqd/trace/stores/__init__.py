"""Databases that traces are stored in. Each module writes many rows in the way that is quickest in its database."""
