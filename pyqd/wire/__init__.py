"""Bytes to commands and frames to bytes; pure functions, no state kept."""
