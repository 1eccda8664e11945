"""Reclaims disk space and memory in the background: tends each topic every few seconds, sooner if one lacks space.

Tending a topic with nothing to reclaim costs about a microsecond. Topics are tended some at a time, and the loop runs
in between. Source: docs/space.md.
"""

from collections.abc import Callable

import gevent

from pyqd.broker.broker import Broker
from pyqd.broker.reclaimer import reclaim
from pyqd.diskqueue.segment_jobs import log_failure
from pyqd.hot.primitives.clock import mono
from pyqd.net.greenlets import spawn_service
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.errors import StorageError
from pyqd.primitives.memory import FullCollections

LOOK_S = 5.0
LOOK_SHORT_OF_ROOM_S = 0.25
TOPICS_PER_SLICE = 128


class Housekeeper:
    """Greenlet that reclaims space of every topic periodically.

    on_internal_error: is called with an error that ends the greenlet; if it is None, the housekeeper goes on.
    """

    def __init__(self, broker: Broker, on_internal_error: Callable[[BaseException], None] | None = None) -> None:
        self._broker = broker
        self._on_internal_error = on_internal_error
        self._greenlet: gevent.Greenlet[[], None] | None = None
        self._collections = FullCollections()

    def start(self) -> None:
        self._greenlet = spawn_service("housekeeper", self._run, self._on_internal_error)

    def stop(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None

    def _run(self) -> None:
        waited_s = 0.0
        while True:
            gevent.sleep(LOOK_SHORT_OF_ROOM_S)
            waited_s += LOOK_SHORT_OF_ROOM_S
            if self._broker.short_of_room or self._broker.placeholders or waited_s >= LOOK_S:
                waited_s = 0.0
                self._broker.retry_write()
                self.reclaim_all()

    def reclaim_all(self) -> None:
        """Tend every topic once, after the placeholders of missing files; then the collector. Switches: yes."""
        self._broker.placeholders.settle()
        self._broker.retry_removals()
        self._broker.tracing.tend()
        owner_count = self._broker.capacity.connection_count()
        for index, topic in enumerate(list(self._broker.topics.values()), 1):
            owner_count += 1 + len(topic.channels_by_name)
            if not topic.exiting:
                try:
                    reclaim(topic, mono())
                except StorageError as error:
                    log_failure(None, error)
            if index % TOPICS_PER_SLICE == 0:
                yield_to_loop()
        self._collections.tend(owner_count)
