"""Limits of the machine, and the reserve of each for existing topics, channels and connections.

A broker that uses up a limit of the machine cannot even do what it must: roll a log, grow a ledger, start again. So
each limit is read at the start, and a part of it is kept in reserve. When only the reserve is left, new topics,
channels and connections are refused, and everything that exists goes on. The reserve of disk blocks is kept by
`pyqd.diskqueue.space_limit`.

    mappings      files outside the arena (pyx/diskqueue/arena.pyx), so all of them under a limit of the address space
    memory        the least that the machine, the control group and the address space leave
    descriptors   connections; topics and channels hold none

Invariant: a limit is logged once when it is reached, and once when it is not any more.

Source: docs/configuration.md, "Limits of the machine".
"""

import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from pyqd.config.options import Options
from pyqd.hot.diskqueue import arena
from pyqd.hot.diskqueue.mapping import limit_descriptors, unmanaged_count
from pyqd.primitives import machine
from pyqd.primitives.errors import MachineLimitReached

MAPPINGS: Final = "mappings"
MEMORY: Final = "memory"
DESCRIPTORS: Final = "descriptors"
RESOURCES: Final = (MAPPINGS, MEMORY, DESCRIPTORS)

# For threads, the C library, segments that replace others, and the mappings of a start.
MAPPING_RESERVE_SHARE: Final = 16
MAPPING_RESERVE_MIN: Final = 1024
# A mapped file and the gap behind it.
MAPPINGS_PER_FILE: Final = 2
MEMORY_RESERVE_BYTES: Final = 64 << 20
# Memory is read after so many seconds, or so many new topics and channels: a client makes thousands a second.
MEMORY_LOOK_S: Final = 1.0
MEMORY_LOOK_COUNT: Final = 32
DESCRIPTOR_RESERVE_SHARE: Final = 4
DESCRIPTOR_RESERVE_MAX: Final = 1024
# A quarter each for files of batches, for files that are to stay known to the kernel, for syncs and renames, and for
# connections that are refused.
DESCRIPTOR_KINDS: Final = 4
# For listeners, event loops of threads, and the log.
DESCRIPTORS_OWN: Final = 64

logger = logging.getLogger(__name__)


class Shortage(NamedTuple):
    """A limit that is reached. text: names the limit and how to raise it."""

    resource: str
    text: str


class Capacity:
    """Limits of the machine: decides whether it can serve more topics, channels and connections.

    file_max: files that may be mapped outside the arena; None: any number. connection_max: likewise, of connections.
    available_bytes: memory that may still be taken. connection_count: how many connections there are.
    http_extra: connections that HTTP may have, out of the reserve, when all others are refused.
    refused_max: refused connections of each listener that stay open until their answer is sent; out of the reserve.
    """

    def __init__(
        self,
        file_max: int | None = None,
        connection_max: int | None = None,
        available_bytes: Callable[[], int] = lambda: 1 << 62,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        connection_count: Callable[[], int] = int,
        http_extra: int = 0,
        refused_max: int = 1 << 30,
    ) -> None:
        self.file_max = file_max
        self.connection_max = connection_max
        self.http_extra = http_extra
        self.refused_max = refused_max
        self.connection_count = connection_count
        self._available_bytes = available_bytes
        self._clock_s = clock_s
        self._looked_s = float("-inf")
        # Topics and channels since then.
        self._created_count = 0
        self._has_memory = True
        self._reached: set[str] = set()

    @classmethod
    def of_machine(cls, options: Options, connection_count: Callable[[], int]) -> "Capacity":
        """Return the capacity that the machine's limits allow, and put the limit of mapped files in force."""
        mapping_max = machine.mapping_max()
        reserve = max(MAPPING_RESERVE_MIN, mapping_max // MAPPING_RESERVE_SHARE)
        left = max(0, mapping_max - machine.mapping_count() - reserve)
        file_max = left
        if options.max_mapped_files:
            file_max = min(file_max, options.max_mapped_files)
        descriptor_max = machine.descriptor_max()
        reserve = min(DESCRIPTOR_RESERVE_MAX, descriptor_max // DESCRIPTOR_RESERVE_SHARE)
        arena.configure(min(file_max, left // MAPPINGS_PER_FILE), reserve // DESCRIPTOR_KINDS)
        limit_descriptors(reserve // DESCRIPTOR_KINDS)
        connection_max = max(1, descriptor_max - reserve - DESCRIPTORS_OWN)
        extra = reserve // (4 * DESCRIPTOR_KINDS)
        return cls(
            file_max,
            connection_max,
            machine.available_bytes,
            connection_count=connection_count,
            http_extra=extra,
            refused_max=extra,
        )

    def shortages(self) -> list[Shortage]:
        """Return the limits that are reached now, and log changes."""
        found = [*self._mappings(), *self._memory(), *self._descriptors()]
        reached = {shortage.resource for shortage in found}
        for shortage in found:
            if shortage.resource not in self._reached:
                logger.error("LIMIT: new topics, channels or connections are refused - %s", shortage.text)
        for name in self._reached - reached:
            logger.info("LIMIT: the limit of %s is no longer reached", name)
        self._reached = reached
        return found

    def refusal(self) -> str | None:
        """Return why a new topic or channel would be refused now; None if it would not."""
        found = self.shortages()
        return found[0].text if found else None

    def check(self, name: str) -> None:
        """Check that a topic or channel can be created. name: of the new one. Raises: MachineLimitReached."""
        self._created_count += 1
        for shortage in self.shortages():
            if shortage.resource != DESCRIPTORS:
                raise MachineLimitReached(
                    f"OUT_OF_{shortage.resource.upper()}", f"cannot create {name}: {shortage.text}"
                )

    def connection_refusal(self) -> str:
        """Return why a connection is refused now; the empty string if it is not."""
        for shortage in self.shortages():
            if shortage.resource != MAPPINGS:
                return shortage.text
        return ""

    def http_refusal(self) -> str:
        """Return why a connection over HTTP is refused now: later than others, so that /ping and /metrics answer."""
        if self.connection_max is None or self.connection_count() < self.connection_max + self.http_extra:
            return ""
        return self.connection_refusal()

    def _mappings(self) -> list[Shortage]:
        if self.file_max is None or unmanaged_count() < self.file_max:
            return []
        text = (
            f"limit of {self.file_max} mapped files reached; raise vm.max_map_count or --max-mapped-files, or start "
            "pyqd without a limit of the address space (ulimit -v), so that idle files are unmapped"
        )
        return [Shortage(MAPPINGS, text)]

    def _memory(self) -> list[Shortage]:
        now_s = self._clock_s()
        if now_s - self._looked_s >= MEMORY_LOOK_S or self._created_count >= MEMORY_LOOK_COUNT:
            self._looked_s, self._created_count = now_s, 0
            try:
                self._has_memory = self._available_bytes() >= MEMORY_RESERVE_BYTES
            except OSError:
                self._has_memory = True
        if self._has_memory:
            return []
        text = (
            f"less than {MEMORY_RESERVE_BYTES} bytes of memory are left; raise memory.max of the control group or the "
            "limit of the address space (ulimit -v), or give the machine more"
        )
        return [Shortage(MEMORY, text)]

    def _descriptors(self) -> list[Shortage]:
        if self.connection_max is None or self.connection_count() < self.connection_max:
            return []
        text = (
            f"limit of {self.connection_max} connections reached; raise the limit of open files (RLIMIT_NOFILE, ulimit "
            "-n, LimitNOFILE of systemd), of which storage keeps a reserve"
        )
        return [Shortage(DESCRIPTORS, text)]
