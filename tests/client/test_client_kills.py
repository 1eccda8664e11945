"""Short runs of scripts/kills/client_kills.py, and proof that it notices a loss."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "kills"
WAIT_S = 100

pytestmark = [pytest.mark.slow, pytest.mark.timeout(WAIT_S + 20)]


@pytest.fixture
def kills(monkeypatch):
    """The module of the script."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("client_kills")


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_nothing_is_lost_over_some_kills(face):
    arguments = ("--json", f"--face={face}", "--messages=80000", "--interval=0.1", "--seed=7")
    result = subprocess.run(
        [sys.executable, str(SCRIPTS / "client_kills.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert result.stdout, result.stderr
    report = json.loads(result.stdout)
    assert (report["lost"], report["first_lost"], report["ok"]) == (0, [], True)
    assert report["acknowledged"] == 80_000
    assert report["broker_kills"] + report["consumer_kills"] >= 2
    assert result.returncode == 0


def test_a_number_that_nobody_noted_is_found(kills, tmp_path):
    ledger = tmp_path / "ledger"
    ledger.write_bytes(b"".join(kills.NUMBER.pack(number) for number in (0, 1, 3, 3)))
    ledgers = [ledger, tmp_path / "of a consumer that was killed at once"]
    assert list(kills.counts_in(ledgers, 5)) == [1, 1, 0, 2, 0]


def test_each_number_is_published_until_it_is_acknowledged(kills):
    publications = kills.Publications(5)
    assert publications.take(3) == [0, 1, 2]
    publications.note([0, 2], None)
    publications.note([1], OSError("refused"))
    assert publications.take(10) == [1, 3, 4]
    publications.note([1, 3, 4], None)
    assert (publications.take(10), publications.acknowledged, publications.failed) == ([], 5, 1)
