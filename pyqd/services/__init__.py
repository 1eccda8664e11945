"""HTTP API, lookup registration, metrics, timers and syncing around the broker."""
