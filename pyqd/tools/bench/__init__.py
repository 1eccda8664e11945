"""Parts of `pyq_bench`: connections, runs, figures. The benchmarks of the repository stand on them too."""
