"""Ends the process if a stop makes no progress because the disk does not answer.

A stop syncs everything on the thread of the event loop, and waits for the threads that still write. If the disk hangs,
none of these calls returns, and no timer of the loop runs. So a thread watches the stop from outside.

Ending the process loses nothing that a kill would keep: accepted messages and finished state are in the page cache. The
data directory is not marked as cleanly stopped, so the next start recovers as after a kill.

faulthandler's timer needs no interpreter lock: it ends the process if a store to a mapped page holds the lock while the
kernel waits for the disk. A thread of the process in uninterruptible sleep still delays its end; no signal helps then.
"""

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable

REPORT_S = 10.0
# Longer than systemd waits by default, and than a sync of a whole file system takes on a slow disk.
LIMIT_S = 120.0
# The thread's log line comes before the timer's stacks.
TIMER_LATER_S = 10.0
EXIT_CODE = 1
# A descriptor, as sys.stderr may be an object without one.
STANDARD_ERROR = 2

logger = logging.getLogger(__name__)


class StopWatchdog:
    """Watch over one stop. progress: a number that changes with each step of the stop; read in a thread.

    limit_s: the process ends after so many seconds without a step.
    """

    def __init__(self, progress: Callable[[], int], limit_s: float = LIMIT_S, report_s: float = REPORT_S) -> None:
        self._progress = progress
        self._limit_s = limit_s
        self._report_s = report_s
        self._done = threading.Event()

    def start(self) -> None:
        """Begin to watch. If the machine has no memory for a thread, the stop goes on without a watch."""
        try:
            threading.Thread(target=self._run, name="stop watchdog", daemon=True).start()
        except RuntimeError as error:
            logger.warning(
                "cannot start the thread that watches the stop: %s; the stop waits for the disk without a limit", error
            )

    def finish(self) -> None:
        """End the watch, because the stop is complete."""
        self._done.set()
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        steps, since_s = self._progress(), time.monotonic()
        self._set_timer()
        while not self._done.wait(self._report_s):
            now_s = time.monotonic()
            if self._progress() != steps:
                steps, since_s = self._progress(), now_s
                self._set_timer()
            elif now_s - since_s >= self._limit_s:
                self._give_up(now_s - since_s)
            else:
                logger.warning(
                    "stopping: the disk has completed no write for %d s; the process ends without it after %d s",
                    now_s - since_s,
                    self._limit_s,
                )

    def _set_timer(self) -> None:
        faulthandler.dump_traceback_later(self._limit_s + TIMER_LATER_S, exit=True, file=STANDARD_ERROR)

    def _give_up(self, waited_s: float) -> None:
        logger.error(
            "cannot complete the stop: the disk has completed no write for %d s; exiting with code %d. No accepted "
            "message is lost if the machine stays up; the next start recovers as after a kill",
            waited_s,
            EXIT_CODE,
        )
        os._exit(EXIT_CODE)
