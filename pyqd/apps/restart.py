"""Restart without a gap: a daemon starts its successor, hands its listening sockets over, and ends when it serves.

1. The daemon starts the same command line again, perhaps of a newer version, and goes on serving. The successor loads
   its code, reads its flags and files, and says `ready`, or the reason why it cannot start.
2. The daemon stops as after SIGTERM, but keeps its listening sockets and the lock on the data directory open: clients
   that connect now wait in the queue of the socket. It says `go`.
3. The successor loads the data, accepts, and says `up`. The daemon ends. If the successor fails instead, the daemon
   loads the data itself and goes on.

The pause for clients is the time of the stop and of the load.

A daemon that is asked to stop meanwhile ends its successor, and waits for its end, because it holds the lock on the
data directory as well. A successor that has taken over stops by itself, as after SIGTERM. A successor whose
daemon is killed then serves in its place.
"""

import contextlib
import json
import logging
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import gevent
from gevent.socket import wait_read

from pyqd.api.restart import RestartError
from pyqd.apps.inherited import HANDOVER_VARIABLE, Inherited, owned
from pyqd.primitives.errors import StartupError

READY, GO, UP, FAILED = "ready", "go", "up", "failed"
# Time for loading the code and checking flags and files.
READY_S = 60.0
MESSAGE_BYTES_MAX = 4096
# Once the successor was asked to end.
END_S = 5.0
POLL_S = 0.02
# For the answer to the request for a restart.
ANSWERED_S = 0.05
STOPS = "the daemon is about to stop"
# The kernel kills all processes of a container when this one ends.
FIRST_PROCESS = 1
CONTAINER_ENDS = "this process is the first of its container, which ends with it; restart the container instead"

logger = logging.getLogger(__name__)


class Successor:
    """Process that is to take over. keep: the sockets and the lock that it inherits. Raises: RestartError."""

    def __init__(self, keep: Inherited) -> None:
        try:
            mine, theirs = socket.socketpair()
        except OSError as error:
            raise RestartError(f"cannot start a new process: {error.strerror}") from error
        lock_fd = keep.lock_fd
        assert lock_fd is not None, "the data directory is locked"
        listeners = {name: (each.fileno(), keep.flags[name]) for name, each in keep.listeners.items()}
        handover = {"control": theirs.fileno(), "lock": lock_fd, "systemd": keep.from_systemd, "listeners": listeners}
        # WATCHDOG_PID names this process.
        environ = {name: value for name, value in os.environ.items() if name != "WATCHDOG_PID"}
        environ[HANDOVER_VARIABLE] = json.dumps(handover)
        fds = [theirs.fileno(), lock_fd, *(fd for fd, _ in listeners.values())]
        try:
            self._process = subprocess.Popen(sys.orig_argv, env=environ, pass_fds=fds, stdin=subprocess.DEVNULL)
        except OSError as error:
            mine.close()
            raise RestartError(f"cannot start {sys.orig_argv[0]}: {error.strerror}") from error
        finally:
            theirs.close()
        mine.setblocking(False)
        self._control = mine

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until it could take over; end it if it cannot. Raises: RestartError. Switches: yes."""
        self._expect(READY, READY_S)

    def wait_up(self) -> None:
        """Let the successor take over, and wait until it serves; end it if it fails.

        Raises: RestartError. Switches: yes.
        """
        try:
            self._control.send(GO.encode())
        except OSError as error:
            self.end()
            raise RestartError("the new process has ended") from error
        self._expect(UP, None)

    def terminate(self) -> None:
        """Stop the process as SIGTERM does; nothing happens before it has loaded the data. Switches: no."""
        self._process.terminate()

    def cancel(self) -> None:
        """Kill the process, and end the wait for its message. Switches: no."""
        # Not closed: another greenlet may wait for the socket.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._process.terminate()

    def end(self) -> None:
        """End the process. Switches: yes."""
        self.cancel()
        if not self.wait_ended(END_S):
            self._process.kill()
            self._process.wait()
        self._control.close()

    def wait_ended(self, wait_s: float = math.inf) -> bool:
        """Wait until the process has ended. Returns: whether it has. Switches: yes."""
        end_s = time.monotonic() + wait_s
        while self._process.poll() is None:
            if time.monotonic() >= end_s:
                return False
            gevent.sleep(POLL_S)
        return True

    def _expect(self, wanted: str, wait_s: float | None) -> None:
        """Wait for a word from the process. Raises: RestartError if it says another one, ends, or is too late."""
        reason = f"the new process was not ready within {wait_s} s"
        # A daemon with many clients has descriptors beyond those that select(2) can wait for.
        with contextlib.suppress(TimeoutError):
            wait_read(self._control.fileno(), wait_s)
            try:
                word, _, reason = self._control.recv(MESSAGE_BYTES_MAX).decode(errors="replace").partition(" ")
            except OSError:
                word = ""
            if word == wanted:
                return
            reason = reason or "the new process has ended; its log names the reason"
        self.end()
        raise RestartError(reason)


class Predecessor:
    """Daemon that this process succeeds. control: connection to it."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def wait_for_go(self) -> None:
        """Report readiness to the predecessor, and wait for its stop. Raises: StartupError. Switches: no."""
        self._send(READY)
        try:
            word = self._control.recv(MESSAGE_BYTES_MAX)
        except OSError:
            word = b""
        if word != GO.encode():
            raise StartupError("the daemon that started this process has ended, or does not restart any more")

    def report_serving(self) -> None:
        """Report to the predecessor that this process serves. A killed predecessor is no error."""
        try:
            self._send(UP)
        except StartupError as error:
            logger.warning("NSQ: restart: %s", error)
        self._control.close()

    def report_failed(self, reason: str) -> None:
        with contextlib.suppress(StartupError):
            self._send(f"{FAILED} {reason}"[: MESSAGE_BYTES_MAX // 4])
        self._control.close()

    def _send(self, text: str) -> None:
        try:
            self._control.send(text.encode())
        except OSError as error:
            raise StartupError("the daemon that started this process has ended") from error


def report_failure(environ: Mapping[str, str], reason: str) -> None:
    """Send the error to the predecessor named in the environment: this process cannot start."""
    handover = environ.get(HANDOVER_VARIABLE)
    if handover:
        Predecessor(owned(json.loads(handover)["control"])).report_failed(reason)


class Restarts:
    """Restarts of one daemon. keep: returns sockets and lock for a successor. on_ready: called when it is ready."""

    def __init__(self, keep: Callable[[], Inherited], on_ready: Callable[[], None]) -> None:
        self._keep = keep
        self._on_ready = on_ready
        self._successor: Successor | None = None
        self._is_ready = False
        self._goes = False
        self.abandoned = False
        self.last_error = ""

    @property
    def is_ready(self) -> bool:
        return self._is_ready and not self.abandoned

    def begin(self) -> int:
        """Start a successor and wait until it is ready. Returns: its pid. Raises: RestartError. Switches: yes."""
        if self.abandoned:
            raise RestartError(STOPS)
        if self._successor is not None:
            raise RestartError("a restart is under way")
        if os.getpid() == FIRST_PROCESS:
            error = RestartError(CONTAINER_ENDS)
            self.note_failure(error)
            raise error
        self.last_error = ""
        logger.info("NSQ: restart: starting a new process")
        try:
            self._successor = successor = Successor(self._keep())
            successor.wait_ready()
        except RestartError as error:
            self._successor = None
            if self.abandoned:
                raise RestartError(STOPS) from error
            self.note_failure(error)
            raise
        logger.info("NSQ: restart: process %d is ready to take over", successor.pid)
        self._is_ready = True
        # The answer to the request for the restart leaves first.
        gevent.spawn_later(ANSWERED_S, self._report_ready)
        return successor.pid

    def begin_unasked(self) -> None:
        """Begin as `begin` does, for a signal: an error is in the log."""
        try:
            self.begin()
        except RestartError:
            return

    def hand_over(self) -> int:
        """Let the successor take over, and wait until it serves. Returns: its pid. Raises: RestartError.

        Switches: yes. If the restart is abandoned meanwhile, the successor has ended when this returns or raises.
        """
        successor = self._successor
        assert successor is not None
        self._goes = not self.abandoned
        successor.wait_up()
        if self.abandoned:
            successor.wait_ended()
        return successor.pid

    def abandon(self) -> None:
        """Refuse restarts from now on, and end the successor, because this daemon is to stop. Switches: no."""
        self.abandoned = True
        if self._successor is None:
            return
        if self._goes:
            self._successor.terminate()
        else:
            self._successor.cancel()

    def wait_ended(self) -> None:
        """Wait until an abandoned successor has ended. Switches: yes."""
        if self._successor is not None:
            self._successor.end()

    def note_failure(self, error: RestartError) -> None:
        self.last_error = str(error)
        logger.error("NSQ: restart refused: %s; this process goes on serving", error)

    def as_dict(self) -> dict[str, object]:
        return {"pid": os.getpid(), "restarting": self._successor is not None, "error": self.last_error}

    def _report_ready(self) -> None:
        if self.is_ready:
            self._on_ready()
