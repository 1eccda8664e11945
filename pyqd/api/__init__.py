"""Routes of the HTTP API, one module per group, with the rights that they require."""
