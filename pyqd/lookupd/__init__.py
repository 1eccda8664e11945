"""The lookup daemon `pyqlookupd`: which brokers have which topics and channels."""
