"""HTTP server: connections, parser, router and limits."""
