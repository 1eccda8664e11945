"""Commands of pyq_trace."""
