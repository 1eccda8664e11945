"""A short campaign of the fuzzer, and proof that it notices the faults it is made for. A longer one:
scripts/fuzz.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fuzz.campaign import Campaign, Unwell, make_case, run

SEED = 20
SECONDS = 4

pytestmark = pytest.mark.slow


def campaign_in(directory: Path) -> Campaign:
    campaign = Campaign(directory, SEED)
    campaign.start()
    return campaign


def test_the_daemon_stays_well_whatever_is_sent_to_its_ports():
    report = run(SEED, SECONDS, batch=25)
    print(report.text())
    assert report.cases >= 25


def test_a_case_follows_from_the_seed_and_its_number():
    assert make_case(SEED, 7) == make_case(SEED, 7)
    assert make_case(SEED, 7) != make_case(SEED, 8) != make_case(SEED + 1, 8)


def test_a_daemon_that_dies_is_found_out(tmp_path):
    campaign = campaign_in(tmp_path)
    campaign.daemon.kill()
    with pytest.raises(Unwell, match=f"after cases 3 to 3 of seed {SEED}"):
        campaign.play([3])
    campaign.kill()


def test_an_error_in_the_log_is_found_out(tmp_path):
    campaign = campaign_in(tmp_path)
    try:
        with campaign.daemon.log_path.open("a") as log:
            log.write("[pyqd] ERROR: HTTP: internal error, closing connection\n")
        with pytest.raises(Unwell, match="internal error"):
            campaign.play([3])
    finally:
        campaign.kill()


def test_a_socket_that_is_left_is_found_out(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.fuzz.campaign.SETTLE_S", 0.5)
    campaign = campaign_in(tmp_path)
    try:
        left = campaign.player.connect("tcp")
        with pytest.raises(Unwell, match="only the sockets from before"):
            campaign.play([3])
        left.close()
    finally:
        campaign.kill()


def test_memory_that_grows_is_found_out(tmp_path):
    campaign = Campaign(tmp_path, SEED)
    campaign.report.cases = 5000
    campaign.report.memory_bytes = [(30 << 20) + number * (1 << 20) for number in range(100)]
    with pytest.raises(AssertionError, match="memory grew"):
        campaign.check_growth()
