"""Interfaces of the objects above: calls of a topic to its broker, and of a channel to its topic.

Imports go from the broker down to the files of a channel. The references back have these types.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from pyqd.broker.capacity import Capacity
from pyqd.config.options import Options
from pyqd.diskqueue.damage import SetAside
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.placeholders import Placeholders
from pyqd.diskqueue.redo import JournaledTopic
from pyqd.diskqueue.reliable_sync import ReliableSync
from pyqd.diskqueue.segment_jobs import Done, Job
from pyqd.diskqueue.space_limit import DiskReserve, SpaceLimit
from pyqd.diskqueue.unsynced import Names
from pyqd.hot.broker.readable_log import ReadableLog
from pyqd.hot.broker.trace import TracePlace
from pyqd.hot.diskqueue.dues import Dues
from pyqd.hot.diskqueue.log import Log, Position
from pyqd.hot.diskqueue.mapping import Mapping as FileMapping
from pyqd.hot.diskqueue.notefiles import NoteFiles
from pyqd.hot.primitives.schedule import Scheduler


class NamedTopic(Protocol):
    """Topic that may take dead letters."""

    name: str
    exiting: bool


class OwningBroker(Protocol):
    """The broker, as its topics and channels see it. The members are described there."""

    options: Options
    files: Files
    capacity: Capacity
    scheduler: Scheduler
    syncs: ReliableSync
    placeholders: Placeholders
    reserve: DiskReserve
    short_of_room: Any
    set_aside: list[SetAside]
    power_failed: bool
    names_durable: bool
    has_syncer: bool
    node_name: str
    in_background: Callable[[Job, Done], None]
    read_in_background: Callable[[Job, Done], None]
    read_and_wait: Callable[[Job], None]
    on_finished: Callable[[Any], object] | None

    @property
    def topics(self) -> Mapping[str, NamedTopic]: ...
    def new_log(
        self,
        directory: str | None,
        found: bool = False,
        exists: bool | None = None,
        known: tuple[int, int] = (0, 0),
    ) -> Log: ...
    def take_journaled(
        self, topic_name: str, log_directory: str, created_ns: int, state_lost: bool
    ) -> JournaledTopic | None: ...
    def next_created_ns(self) -> int: ...
    def journals(self) -> bool: ...
    def discard(self, directory: str) -> str: ...
    def remove_discarded(self, directory: str, moved: str) -> None: ...
    def remove_partial(self, directory: str) -> None: ...
    def remove_leftovers(self, directory: str) -> None: ...
    def delete_topic(self, name: str) -> bool: ...


class OwningTopic(Protocol):
    """The topic, as its channels see it. The members are described there."""

    name: str
    directory: str | None
    files: Files
    names: Names
    exiting: bool
    dead_letter_sources: set[Any]
    retention_bytes: int
    retention_time_ns: int
    own_limits: tuple[int | None, int | None, int | None]

    @property
    def broker(self) -> OwningBroker: ...
    @property
    def quota(self) -> SpaceLimit: ...
    @property
    def readable(self) -> ReadableLog: ...
    @property
    def log(self) -> Log: ...
    @property
    def dues(self) -> Dues: ...
    @property
    def end(self) -> int: ...
    @property
    def mapping(self) -> FileMapping: ...
    @property
    def trace(self) -> TracePlace | None: ...
    def end_position(self) -> Position: ...
    def note_given(self, end: int) -> None: ...
    def note_dues_synced(self, end: int) -> None: ...
    def prepare_slots(self, store: NoteFiles, path: str, size_bytes: int) -> None: ...
    def note_set_aside(self, channel: str | None, reason: str) -> None: ...
    def notes_bytes(self) -> int: ...
    def lifted_quota(self) -> AbstractContextManager[None]: ...
    def trim_finished(self) -> None: ...
    def remove_spares(self) -> None: ...
    def settle_dead_letters(self) -> None: ...
    def delete_channel(self, name: str) -> bool: ...
