"""pyqd: a message broker that speaks the NSQ protocol."""

__version__ = "0.1.0"
