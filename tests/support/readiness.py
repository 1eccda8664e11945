"""Readiness of one file descriptor.

poll(2) takes any number; select(2) fails above 1023, which long test runs reach.
"""

from __future__ import annotations

import select
from typing import Protocol


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def is_readable(source: int | HasFileno, wait_s: float | None) -> bool:
    """Wait until a descriptor can be read, has ended or has failed. Returns: False after wait_s seconds, None never."""
    return _is_ready(source, select.POLLIN, wait_s)


def is_writable(target: int | HasFileno, wait_s: float) -> bool:
    """Wait until a descriptor takes data or has failed. Returns: False after wait_s seconds."""
    return _is_ready(target, select.POLLOUT, wait_s)


def _is_ready(each: int | HasFileno, events: int, wait_s: float | None) -> bool:
    poll = select.poll()
    poll.register(each, events)
    # poll(2) takes a negative time for none.
    return bool(poll.poll(None if wait_s is None else max(0.0, wait_s) * 1000))
