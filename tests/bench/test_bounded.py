"""Fan-out with a limit on messages that are not yet consumed."""

from dataclasses import replace

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import bounded, runner
from bench.server import Target
from bench.setting import Cores, Setting
from bench.workloads import find
from pyqd.hot.tools.loadgen import Load
from pyqd.tools.bench.outcome import ChannelCount, LoadCounts, LoadReport

MESSAGES = 1000
BATCH = 50


class Broker:
    """Pretended broker: each call publishes a batch, or delivers to two channels, one of them slowly."""

    def __init__(self) -> None:
        self.sent = 0
        self.delivered = [0, 0]
        self.most = 0

    def publish(self) -> bool:
        self.sent += BATCH
        self.most = max(self.most, self.sent - min(self.delivered))
        return self.sent == MESSAGES

    def deliver(self) -> bool:
        self.delivered = [min(self.sent, had + more) for had, more in zip(self.delivered, (50, 10), strict=True)]
        return min(self.delivered) == MESSAGES


class PretendedLoad(Load):
    """Load on the pretended broker."""

    broker: Broker
    consuming: bool

    def start(self, *, spin: bool = False) -> None:
        assert spin

    def advance(self, seconds: float) -> bool:
        return self.broker.deliver() if self.consuming else self.broker.publish()

    def counts(self) -> LoadCounts:
        return LoadCounts(sent=self.broker.sent)

    def report(self) -> LoadReport:
        channels = tuple(ChannelCount(unique=count, duplicates=0, foreign=0) for count in self.broker.delivered)
        return replace(super().report(), confirmed=self.broker.sent, channels=channels)


def test_publishers_wait_for_the_slowest_channel() -> None:
    broker = Broker()
    publishing, consuming = (PretendedLoad(messages=MESSAGES, body_bytes=200) for _ in range(2))
    publishing.broker = consuming.broker = broker
    publishing.consuming, consuming.consuming = False, True
    report = bounded.run(publishing, consuming, unconsumed=200, deadline_s=60.0)
    assert not report.timed_out
    assert report.confirmed == MESSAGES
    assert 200 <= broker.most < 200 + BATCH


@pytest.mark.slow
def test_every_channel_of_a_limited_fan_out_gets_every_message() -> None:
    load = replace(find("fanout-16").scaled(0.02), unconsumed=500)
    result = runner.run_once(load, Target.parse("pyqd"), Setting(cores=Cores()))
    assert result.problem == ""
    assert (result.losses, result.duplicates) == (0, 0)
    assert result.figures["published_per_s"] > 0
    assert result.figures["answer_p50_us"] > 0
