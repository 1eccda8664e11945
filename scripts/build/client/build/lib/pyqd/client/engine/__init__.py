"""Sockets, timers and threads of one producer or consumer.

engine.py puts the parts together: links to brokers, the poller of their sockets, timers, the role of the driver, the
stand-in, and the event loop of an asyncio program as the driver.
"""
