"""Syncs of logs and ledgers to stable storage, the group commit of publishers, and the reclaiming of disk space."""
