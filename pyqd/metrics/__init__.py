"""Counters for Prometheus and statsd, and the identity of the daemon."""
