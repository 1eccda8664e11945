"""The Python client: producers and consumers of NSQ, blocking and for asyncio."""
