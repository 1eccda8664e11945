"""Messages to HTTP servers: addresses, connections that are kept, retries. Source: docs/tools/pyq_to_http.md."""
