"""Listeners, admission, TLS, greenlets, the loop driver and background threads, for any protocol."""
