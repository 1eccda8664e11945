"""What pyqd says of itself where NSQ's clients, tools and admin compare versions."""

from typing import Final

# The nsqd release whose protocol and HTTP API are spoken; clients and admin pages decide by it what they may ask for.
NSQ_VERSION: Final = "1.3.0"
