"""Engines of this process: their state after a fork, and their end with the interpreter."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Owner(Protocol):
    """Producer or consumer that an engine belongs to."""

    def _after_fork(self) -> None:
        """Begin without connections, in the child of a fork."""

    def _at_exit(self) -> None:
        """Close, because the interpreter ends."""


class OwnedEngine(Protocol):
    """Engine, as its process sees it."""

    is_closed: bool
    owner: weakref.ref[Owner]

    def after_fork(self) -> None: ...


ENGINES: weakref.WeakSet[OwnedEngine] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for engine in list(ENGINES):
        engine.after_fork()


def _close_all() -> None:
    """Close the producers and consumers that the program has left open, before the interpreter stops the stand-ins."""
    for engine in list(ENGINES):
        owner = None if engine.is_closed else engine.owner()
        if owner is not None:
            owner._at_exit()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_all)
