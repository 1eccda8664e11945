"""Segmented log on disk and the ledgers of what was acknowledged; no channels, no clients."""
