"""Messages of topics to files: names, encodings, rotation, and the consumers. Source: docs/tools/pyq_to_file.md."""
