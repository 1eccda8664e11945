"""The web admin: reads brokers and lookup daemons over HTTP, shows them, and steers them."""
