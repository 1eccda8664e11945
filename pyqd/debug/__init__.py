"""Profiles, flame graphs and diagnostics of the running process."""
