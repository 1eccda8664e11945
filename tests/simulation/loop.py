"""Event loop of the simulated process: sockets, callbacks and greenlets as gevent's hub has them, without waiting.

The hub is a greenlet, the parent of those that connections run in. `run` goes on until there is nothing left to do.
"""

import select
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

READ, WRITE = 1, 2


class Watcher:
    """Calls back when a descriptor can be read or written, as long as it is active."""

    def __init__(self, loop: "Loop", fd: int, events: int) -> None:
        self._loop = loop
        self.fd = fd
        self.events = events
        self.active = False
        self.callback: Callable[..., object] = lambda: None
        self.args: tuple[Any, ...] = ()

    def start(self, callback: Callable[..., object], *args: Any) -> None:
        self.callback, self.args, self.active = callback, args, True
        self._loop.watchers[self] = None

    def stop(self) -> None:
        self.active = False
        self._loop.watchers.pop(self, None)

    close = stop


class Timer:
    """Timer that never goes off: the simulator reads the scheduler's times itself."""

    def start(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""

    stop = close = start


class Loop:
    """Callbacks and watchers."""

    def __init__(self) -> None:
        self.callbacks: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.watchers: dict[Watcher, None] = {}
        self.now_s = 0.0

    def now(self) -> float:
        """Return another time at each call: no work counts as the second of one pass."""
        self.now_s += 1
        return self.now_s

    def run_callback(self, function: Callable[..., object], *args: Any) -> None:
        self.callbacks.append((function, args))

    def io(self, fd: int, events: int) -> Watcher:
        return Watcher(self, fd, events)

    def timer(self, _after: float, _repeat: float = 0.0, priority: int = 0) -> Timer:
        return Timer()

    def run_once(self) -> bool:
        """Run the callbacks that are ready. Returns: whether there were any."""
        if self.callbacks:
            for _ in range(len(self.callbacks)):
                function, args = self.callbacks.popleft()
                function(*args)
            return True
        poll = select.poll()
        watched: dict[tuple[int, int], Watcher] = {}
        asked: dict[int, int] = {}
        for watcher in self.watchers:
            watched[watcher.fd, watcher.events] = watcher
            asked[watcher.fd] = asked.get(watcher.fd, 0) | (select.POLLIN if watcher.events == READ else select.POLLOUT)
        for fd, events in asked.items():
            poll.register(fd, events)
        found = [
            watched[fd, kind]
            for fd, events in poll.poll(0)
            for kind, bits in ((READ, select.POLLIN | select.POLLHUP | select.POLLERR), (WRITE, select.POLLOUT))
            if events & bits and (fd, kind) in watched
        ]
        for watcher in found:
            if watcher.active:
                watcher.callback(*watcher.args)
        return bool(found)


class Hub(greenlet):
    """The greenlet that runs the loop; `run_until_idle` is called by the simulator."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.main = getcurrent()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Run in the hub's greenlet."""
        while True:
            while self.loop.run_once():
                pass
            self.main.switch()

    def run_until_idle(self) -> None:
        """Run until no callback is ready."""
        self.main = getcurrent()
        self.switch()
