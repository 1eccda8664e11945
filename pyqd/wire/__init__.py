"""Codecs between bytes and commands, frames and records: pure functions without state."""
