"""Routes of the HTTP API, one module per group, and the rights that they ask for."""
