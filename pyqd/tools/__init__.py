"""Command-line tools on the Python client: one module per tool, each with a `main`. Source: docs/tools/README.md."""
