"""One life of the simulated daemon: broker, TCP server, syncer, group commit and housekeeper, without threads.

A job for a thread is a `Job` in a list: the schedule decides when it runs and when the loop is told of its end. The
syncer's greenlet is resumed likewise. The wiring here follows `pyqd.apps.daemon`, in its order.
"""

import contextlib
import functools
import logging
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from pyqd.broker.broker import Broker
from pyqd.broker.channel import Channel
from pyqd.config.options import Options, build
from pyqd.durability import group_commit, syncer
from pyqd.durability.fin_sync import FinRound, FinSync
from pyqd.durability.group_commit import GroupCommit
from pyqd.durability.housekeeper import Housekeeper
from pyqd.durability.syncer import Syncer
from pyqd.hot.primitives.clock import mono
from pyqd.net.greenlets import start_raw
from pyqd.primitives.durations import HOUR_NS
from pyqd.tcp.server import TcpServer
from tests.simulation.disk import SimulatedFiles
from tests.simulation.loop import Hub, Loop
from tests.simulation.mirror import ROOT
from tests.support.storage import SEGMENT_BYTES_MIN

SYNC_NEVER = 1 << 30
# Of each file of the journal: short schedules use several.
JOURNAL_BYTES = 32 << 10


class Job:
    """A blocking job: queued, then run, then its end told."""

    def __init__(self, function: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.function = function
        self.done = done
        self.has_run = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run the thread's part."""
        try:
            self.result = self.function()
        except Exception as error:
            self.error = error
        self.has_run = True


class Outcome:
    """gevent's AsyncResult on the simulated loop, as far as group commit uses it."""

    hub: Hub

    def __init__(self) -> None:
        self._value: Any = None
        self._ready = False
        self._waiting: list[greenlet] = []

    def ready(self) -> bool:
        return self._ready

    def set(self, value: Any) -> None:
        self._value, self._ready = value, True
        for waiting in self._waiting:
            self.hub.loop.run_callback(waiting.switch)

    def get(self) -> Any:
        while not self._ready:
            self._waiting.append(getcurrent())
            self.hub.switch()
        return self._value


class NoGreenlet:
    """A greenlet that never runs."""

    def kill(self, block: bool = True) -> None:
        """Nothing."""


@contextlib.contextmanager
def without_gevent() -> Iterator[None]:
    """Let the services run on the simulated loop."""
    replaced: list[tuple[Any, str, Any]] = [
        (syncer, "spawn_service", lambda *args: NoGreenlet()),
        (syncer, "yield_to_loop", lambda: None),
        (group_commit, "AsyncResult", Outcome),
    ]
    former = [getattr(module, name) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(replaced, former, strict=True):
            setattr(module, name, value)


@functools.cache
def options_of(sync_every: int, sync_fin: bool = False, traced: bool = False, body_bytes: int = 8) -> Options:
    """Return options with the smallest segments. traced: all messages are, with so many bytes of their bodies."""
    return build(
        {
            "data-path": ROOT,
            "node-id": 7,
            "max-bytes-per-file": SEGMENT_BYTES_MIN,
            "sync-every": sync_every,
            "sync-fin": sync_fin,
            "max-heartbeat-interval": 10 * HOUR_NS,
            "trace-topic": ("*",) if traced else (),
            "trace-body-bytes": body_bytes,
            "trace-retention-bytes": 1 << 20,
        }
    )


class Failures(logging.Handler):
    """Collector of critical log records: an internal error of a connection, a service or a scheduled run."""

    def __init__(self) -> None:
        super().__init__(logging.CRITICAL)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.found.append(f"{record.getMessage()}: {error!r}")


class WatchedFinSync(FinSync):
    """FinSync that reports its rounds.

    on_begin: called with the gathered channels of a round; returns the covered FINs. on_success: called with these when
    the round is complete.
    """

    on_begin: Callable[[list[Any]], Any]
    on_success: Callable[[Any], None]

    def _gather(self, channels: list[Any]) -> FinRound:
        gathered = super()._gather(channels)
        self._covers = self.on_begin(list(gathered.covered))
        return gathered

    def _finish(self, gathered: FinRound, error: BaseException | None) -> None:
        if error is None:
            self.on_success(self._covers)
        super()._finish(gathered, error)


class Process:
    """One life. Raises, as it is made: StartupError."""

    def __init__(self, files: SimulatedFiles, options: Options, on_error: Callable[[BaseException], None]) -> None:
        self.files = files
        self.on_error = on_error
        self.jobs: list[Job] = []
        self.syncing: greenlet | None = None
        # A channel that is prepared to be emptied.
        self.resetting: Channel | None = None
        self.requests: list[greenlet] = []
        self.hub = Hub()
        Outcome.hub = self.hub
        self.broker = Broker(options, files, in_background=self.submit)
        self.broker.journal.file_bytes = JOURNAL_BYTES
        self.broker.scheduler.on_error = on_error
        reports: Any = {"on_internal_error": on_error}
        self.commit = GroupCommit(self.broker, self.submit, self.hub.loop.run_callback, **reports)
        without: Any = SimpleNamespace(enabled=False)
        self.server = TcpServer(self.broker, options, self.hub, without, without, on_error, self.commit)
        self.housekeeper = Housekeeper(self.broker)
        self.fin_sync: WatchedFinSync | None = None
        if options.sync_fin:
            self.fin_sync = WatchedFinSync(self.broker, self.submit, self.hub.loop.run_callback, **reports)
            self.broker.on_finished = self.fin_sync.note
            reports["on_end"] = self.fin_sync.retry
        self.syncer = Syncer(self.broker, self.in_thread, **reports)

    def start(self) -> None:
        """Do as a start of the daemon does. Raises: StartupError."""
        self.broker.load()
        self.syncer.start()

    def submit(self, function: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Take a job for a thread."""
        self.jobs.append(Job(function, done))

    def run_job(self, number: int, to_the_end: bool) -> None:
        """Take one of the jobs a step further, or tell its end as well."""
        job = self.jobs[number % len(self.jobs)]
        if not job.has_run:
            job.run()
            if job.error is not None and not isinstance(job.error, OSError):
                self.on_error(job.error)
            if not to_the_end:
                return
        self.jobs.remove(job)
        job.done(job.result, job.error)

    def in_thread(self, function: Callable[[], None]) -> None:
        """Run a function as a job, and switch back when its end is reported. Raises: the function's error."""
        current: Any = getcurrent()
        ended: list[BaseException | None] = []

        def done(_result: Any, error: BaseException | None) -> None:
            ended.append(error)
            current.switch()

        self.submit(function, done)
        while not ended:
            current.parent.switch()
        if ended[0] is not None:
            raise ended[0]

    def begin_sync(self, on_end: Callable[[bool], None]) -> None:
        """Start a sync of everything dirty, in jobs. on_end: called with whether all went well."""
        assert self.syncing is None

        def run() -> None:
            done = self.syncer.sync_dirty()
            self.syncing = None
            on_end(done)

        self.syncing = greenlet(run)
        self.syncing.switch()

    def connect(self, number: int) -> socket.socket:
        """Return a client's end of a new connection."""
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        self.server.accept_client(theirs, f"127.0.0.1:{number}")
        return ours

    def run_greenlet(self, function: Callable[[], object]) -> None:
        """Run a function that may wait for a sync, as an HTTP handler may."""
        self.requests.append(start_raw(self.hub, function))

    def turn(self) -> None:
        """Run the end of the loop's pass: wakes, then the due timers."""
        self.hub.run_until_idle()
        scheduler = self.broker.scheduler
        scheduler.run_timers(mono())
        while scheduler.run_wakes():
            self.hub.run_until_idle()
            scheduler.run_timers(mono())

    def end(self) -> None:
        """Let the greenlets of a dead process end: those that wait keep all that they see alive."""
        self.hub.loop = Loop()
        greenlets = [self.syncing, *self.requests]
        for connection in list(self.server.connections):
            greenlets += [connection.ioloop.greenlet, connection.output.pump_greenlet]
        for each in [*greenlets, self.hub]:
            if each is not None and not each.dead:
                with contextlib.suppress(Exception):
                    self.hub.main = getcurrent()
                    each.throw(GreenletExit)

    def stop(self) -> bool:
        """Do as SIGTERM does. Returns: whether all is on stable storage."""
        self.server.close_all(at_once=True)
        self.hub.run_until_idle()
        self.broker.close_topics()
        synced = self.syncer.sync_all()
        if synced:
            self.broker.mark_clean()
        self.jobs.clear()
        return synced
