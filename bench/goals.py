"""Goals of pyqd as data: ratios against nsqd in the same run, and absolute limits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """A goal for one figure of one workload.

    one_core, two_cores: the ratio pyqd / nsqd wanted, against nsqd on one core and on two; at least that where more is
    better, at most where less is (bench.figures).    limit: at most this for pyqd itself, in the unit of the key
    """

    workload: str
    key: str = "rate_per_s"
    one_core: float | None = None
    two_cores: float | None = None
    limit: float | None = None

    def ratio(self, core_count: int) -> float | None:
        return self.one_core if core_count == 1 else self.two_cores


GOALS = (
    Goal("mpub", one_core=7, two_cores=5),
    Goal("consume-1", one_core=5, two_cores=4),
    Goal("consume-4", one_core=5, two_cores=4),
    Goal("e2e", one_core=5, two_cores=3.5),
    Goal("e2e-50", one_core=8, two_cores=5),
    Goal("e2e-4k", one_core=2, two_cores=1.5),
    Goal("e2e-64k", one_core=2, two_cores=1.5),
    Goal("pub-1x1", "answer_p50_us", one_core=1, two_cores=1),
    Goal("pub-1x1", "answer_p99_us", one_core=1, two_cores=1),
    Goal("pub-1x64", one_core=5, two_cores=3),
    Goal("pub-1x1024", one_core=10, two_cores=6),
    Goal("pub-50x1", one_core=1.3, two_cores=1),
    Goal("dpub-64", one_core=5, two_cores=3),
    Goal("fanout-16", one_core=5, two_cores=3),
    Goal("disk-publish", one_core=10, two_cores=6),
    Goal("disk-consume", one_core=10, two_cores=6),
    Goal("disk-e2e", one_core=10, two_cores=6),
    Goal("latency-10k", "latency_p50_us", one_core=0.1, two_cores=0.2),
    Goal("latency-10k", "latency_p99_us", one_core=0.2, two_cores=0.5),
    Goal("latency-50k", "latency_p50_us", one_core=0.1, two_cores=0.2),
    Goal("latency-50k", "latency_p99_us", one_core=0.2, two_cores=0.5),
    Goal("deferred-lateness", "lateness_p99_us", limit=5_000),
    Goal("http-pub", one_core=1.25, two_cores=1),
    Goal("http-mpub", one_core=3, two_cores=2),
    Goal("idle", "private_bytes", one_core=1, two_cores=1),
    Goal("idle", "cpu_percent", one_core=1, two_cores=1),
    Goal("memory-1m", "message_anonymous_bytes", one_core=0.1, two_cores=0.1),
    Goal("start-empty", "start_s", limit=0.5),
    Goal("start-10m", "start_s", limit=1.0),
)


def goals_of(workload: str) -> list[Goal]:
    return [goal for goal in GOALS if goal.workload == workload]
