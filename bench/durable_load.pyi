from collections.abc import Sequence

from pyqd.tools.bench.outcome import DurableReport

class DurableLoad:
    def __init__(
        self,
        fds: Sequence[int],
        requests: Sequence[Sequence[bytes]],
        *,
        outstanding: int,
        answers: int = 1,
        lines: tuple[bytes, ...] = (),
    ) -> None: ...
    def run(self, *, seconds: float, warm_s: float = 0.0, spin: bool = False) -> DurableReport: ...
