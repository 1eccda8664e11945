"""Logins that have ended before their time, by a logout: a copy of their cookie is worth nothing.

The cookie holds the whole session, so that a server without this list would take a copy until the session's time is
over. The list is as long as the logouts within one --session-timeout.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from threading import Lock
from typing import Final

from pyqd.primitives.private_files import replace_private

SUFFIX: Final = ".ended"

logger = logging.getLogger(__name__)


class EndedSessions:
    """Ids of sessions with the times at which these would have ended.

    key_file: path of the key that signs sessions, beside which the list is kept, as the sessions outlast the process;
    empty: they end with it.
    """

    def __init__(self, key_file: str = "") -> None:
        self._path = Path(key_file + SUFFIX) if key_file else None
        self._lock = Lock()
        self._until: dict[str, float] = {}
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError, ValueError):
                for line in self._path.read_text("ascii").splitlines():
                    session_id, _, until_s = line.partition(" ")
                    self._until[session_id] = float(until_s)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._until

    def add(self, session_id: str, until_s: float) -> None:
        """End a session. A file that cannot be written is logged: the session ends with this process only."""
        now_s = time.time()
        with self._lock:
            self._until = {each: end_s for each, end_s in self._until.items() if end_s > now_s}
            self._until[session_id] = until_s
            if self._path is None:
                return
            text = "".join(f"{each} {end_s:.0f}\n" for each, end_s in self._until.items())
            try:
                replace_private(self._path, text)
            except OSError as error:
                logger.error(
                    "cannot write %s: %s; a copy of the cookie counts again after a restart", self._path, error
                )
