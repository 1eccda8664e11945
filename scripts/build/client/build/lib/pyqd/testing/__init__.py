"""Help for the tests of programs that use pyqd: a real daemon for a test, and a broker in memory for unit tests.

The pytest plugin imports this package at every start of pytest, so names are loaded when they are first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyqd.testing.daemon import BrokerError, BrokerProcess
    from pyqd.testing.memory.broker import MemoryBroker
    from pyqd.testing.memory.clock import ManualClock
    from pyqd.testing.published import PublishedMessage

__all__ = ["BrokerError", "BrokerProcess", "ManualClock", "MemoryBroker", "PublishedMessage"]

_MODULE_OF = {
    "BrokerError": "pyqd.testing.daemon",
    "BrokerProcess": "pyqd.testing.daemon",
    "ManualClock": "pyqd.testing.memory.clock",
    "MemoryBroker": "pyqd.testing.memory.broker",
    "PublishedMessage": "pyqd.testing.published",
}


def __getattr__(name: str) -> object:
    """Return a name of __all__ and keep it. Raises: AttributeError."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(module), name)
    globals()[name] = found
    return found
