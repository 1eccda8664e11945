"""Short runs of scripts/kills/client_kills.py, and proof that it notices a loss."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.loops import WAIT_S, module_of, run_loop

kills: Any = module_of("client_kills")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(WAIT_S + 20)]


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_nothing_is_lost_over_some_kills(face):
    code, report = run_loop("client_kills", f"--face={face}", "--messages=80000", "--interval=0.1", "--seed=7")
    assert (report["lost"], report["first_lost"], report["ok"]) == (0, [], True)
    assert report["acknowledged"] == 80_000
    assert report["broker_kills"] + report["consumer_kills"] >= 2
    assert code == 0


def test_a_number_that_nobody_noted_is_found(tmp_path):
    ledger = tmp_path / "ledger"
    ledger.write_bytes(b"".join(kills.NUMBER.pack(number) for number in (0, 1, 3, 3)))
    ledgers = [ledger, tmp_path / "of a consumer that was killed at once"]
    assert list(kills.counts_in(ledgers, 5)) == [1, 1, 0, 2, 0]


def test_each_number_is_published_until_it_is_acknowledged():
    publications = kills.Publications(5)
    assert publications.take(3) == [0, 1, 2]
    publications.note([0, 2], None)
    publications.note([1], OSError("refused"))
    assert publications.take(10) == [1, 3, 4]
    publications.note([1, 3, 4], None)
    assert (publications.take(10), publications.acknowledged, publications.failed) == ([], 5, 1)
