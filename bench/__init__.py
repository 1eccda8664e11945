"""Benchmarks of brokers, side by side. The load generator is that of `pyq_bench`; servers are met on the wire only."""
