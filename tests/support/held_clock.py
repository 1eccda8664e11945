"""Both clocks of the compiled modules, held at times that a test sets."""

from pyqd.hot.primitives import clock


class HeldClock:
    """The wall clock and the monotonic clock, standing still from now on, until the block ends."""

    def __init__(self) -> None:
        self.wall_ns = clock.wall()
        self.mono_ns = clock.mono()

    def __enter__(self) -> "HeldClock":
        clock.hold(self.wall_ns, self.mono_ns)
        return self

    def __exit__(self, *_: object) -> None:
        clock.hold(0, 0)

    def advance(self, time_ns: int) -> None:
        self.jump(time_ns, time_ns)

    def jump(self, wall_ns: int, mono_ns: int = 0) -> None:
        """Let the clocks differ by these from now on."""
        self.wall_ns += wall_ns
        self.mono_ns += mono_ns
        clock.hold(self.wall_ns, self.mono_ns)
