"""Tests of bench.sinkd."""

from dataclasses import replace

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench import runner, sinkd
from bench.server import Target
from bench.setting import Cores, Setting
from bench.workloads import find


class EnoughError(Exception):
    pass


def test_stored_messages_are_synced_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def sync(fd: int) -> None:
        synced.append(fd)
        if len(synced) == 3:
            raise EnoughError

    monkeypatch.setattr(sinkd, "SYNC_EVERY_S", 0.0)
    monkeypatch.setattr("os.fdatasync", sync)
    with pytest.raises(EnoughError):
        sinkd.sync_for_ever(7)
    assert synced == [7, 7, 7]


@pytest.mark.slow
def test_a_sink_that_syncs_accepts_published_messages() -> None:
    target = Target.parse("sink-sync")
    assert target.command[-2:] == ("--store", "--sync")
    result = runner.run_once(replace(find("mpub"), messages=40_000), target, Setting(cores=Cores()))
    assert (result.problem, result.losses, result.messages) == ("", 0, 40_000)
