"""Pages of the web admin, rendered on the server; the state of a page is in its URL."""
