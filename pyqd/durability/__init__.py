"""Syncs of logs and ledgers to stable storage, the group commit of publishers, the care of disk space."""
