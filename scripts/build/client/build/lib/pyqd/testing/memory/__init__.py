"""Broker in memory with a clock that the test moves, for unit tests of handlers."""
