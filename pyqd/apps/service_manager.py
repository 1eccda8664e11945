"""Messages to systemd: ready, stopping, a new main process, and the watchdog. Without NOTIFY_SOCKET nothing is sent.

The watchdog's message comes from the event loop: a loop that is held does not send it, and systemd then restarts the
daemon. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

MICROSECONDS = 1e6
# Messages per limit: one may be late.
PER_LIMIT = 3

logger = logging.getLogger(__name__)


class ServiceManager:
    """Connection to the service manager that environ names."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        # Linux's abstract names begin with a zero byte, which systemd writes as @.
        self._path = "\0" + path[1:] if path.startswith("@") else path
        limit_us = environ.get("WATCHDOG_USEC", "")
        is_mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog_s = int(limit_us) / MICROSECONDS if limit_us.isdecimal() and is_mine else 0.0
        self._timer: Any = None

    def ready(self, status: str) -> None:
        self.send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={status}")

    def stopping(self) -> None:
        self.send("STOPPING=1\nSTATUS=stopping")

    def restarting(self) -> None:
        """Tell systemd that a successor is loading the data."""
        self.send("STATUS=handing over to a new process")

    def succeeded_by(self, pid: int) -> None:
        """Tell systemd that another process is the service from now on, and serves.

        systemd ignores the successor's own message if that comes before this one.
        """
        self.send(f"MAINPID={pid}\nSTATUS=serving")

    def watch(self, hub: Any) -> None:
        """Send the watchdog's messages from the loop of a hub, if systemd waits for them."""
        if self._watchdog_s and self._path:
            self._timer = hub.loop.timer(0, self._watchdog_s / PER_LIMIT)
            self._timer.start(self.send, "WATCHDOG=1")

    def send(self, message: str) -> None:
        """Send a message; an error is logged."""
        if not self._path:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode(), self._path)
        except OSError as error:
            logger.warning("cannot notify the service manager at NOTIFY_SOCKET: %s", error.strerror)
