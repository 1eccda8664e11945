"""Segmented log on disk, and ledgers of its finished records; no channels, no clients."""
