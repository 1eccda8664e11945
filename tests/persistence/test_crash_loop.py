"""A short run of scripts/kills/crash_loop.py, and proof that it notices the faults it is made for."""

import random
import struct
import sys
import time
import unittest.mock
from typing import Any, NamedTuple

import pytest

from tests.support.loops import WAIT_S, module_of, run_loop

GUID = b"0123456789abcdef"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(WAIT_S + 20)]


@pytest.mark.parametrize("flags", [(), ("--flag=-sync-every=1",)], ids=["default", "sync each"])
def test_nothing_is_lost_over_some_kills(flags):
    code, report = run_loop("crash_loop", *flags, "--kills=8", "--seed=20", "--interval=0.2", "--messages=800")
    assert report["notes"] == []
    assert (code, report["ok"], report["kills"]) == (0, True, 8)
    assert (report["lost"], report["not_drained"]) == (0, 0)
    assert report["acknowledged"] > 0
    assert report["delivered"] >= report["expected"] > 0
    changes = ("pauses", "channels_made", "channels_deleted", "seeks", "limits_set")
    assert sum(report[name] for name in changes) > 0


def test_a_daemon_that_forgets_is_found_out(tmp_path):
    forgetful = tmp_path / "forgetful"
    forgetful.write_text(
        f"""#!/bin/sh
for argument; do case $argument in -data-path=*) path=${{argument#-data-path=}}; esac; done
for ledger in "$path"/topics/*/plain.channel/ledger; do
    test -e "$ledger" && dd if=/dev/zero of="$ledger" bs=1 seek=24 count=8 conv=notrunc 2>/dev/null
done
exec {sys.executable} -m pyqd.apps.daemon "$@"
"""
    )
    forgetful.chmod(0o755)
    code, report = run_loop("crash_loop", "--kills=2", "--seed=3", "--messages=300", f"--nsqd={forgetful}")
    assert (code, report["ok"]) == (1, False)
    assert report["notes"]


class Accounts(NamedTuple):
    """world, channel, consumers: of the crash loop; body: of its message; checks: the module with the states."""

    world: Any
    channel: Any
    consumers: list[Any]
    body: bytes
    checks: Any

    def frame(self, attempts: int) -> bytes:
        """Return the frame of a delivery."""
        data = struct.pack(">qH16s", 0, attempts, GUID) + self.body
        return struct.pack(">ii", len(data) + 4, 2) + data

    def answer(self, consumer: int, *failed: bytes) -> None:
        """Let the daemon answer the oldest fence: with an error for each failed id, and for the fence."""
        fence = self.consumers[consumer].fenced[0][0]
        for guid in (*failed, fence):
            data = b"E_FIN_FAILED FIN " + guid + b" failed ID not in flight"
            self.consumers[consumer].data_received(struct.pack(">ii", len(data) + 4, 1) + data)


@pytest.fixture
def accounts():
    """The checks of a crash loop with one channel of a topic, and one message that was acknowledged."""
    checks, clients = module_of("crash_checks"), module_of("crash_clients")
    world = checks.World(1, random.Random(1))
    index, body = world.new_message(0, 0)
    world.acknowledge(0, range(index, index + 1))
    channel = world.topics[0].channels[0]
    consumers = [clients.Consumer(world, channel, 200, rough=False) for _ in range(2)]
    for consumer in consumers:
        consumer.transport = unittest.mock.Mock()
    return Accounts(world, channel, consumers, body, checks)


def test_a_message_read_twice_at_once_is_finished_by_one_of_its_two_fins(accounts):
    accounts.consumers[0].data_received(accounts.frame(1) + accounts.frame(2))
    accounts.answer(0, GUID)
    assert accounts.channel.state(0) == accounts.checks.FIN_CONFIRMED


def test_a_fin_that_fails_does_not_undo_that_of_another_consumer(accounts):
    accounts.consumers[0].data_received(accounts.frame(1))
    accounts.consumers[1].data_received(accounts.frame(2))
    accounts.answer(0, GUID)
    accounts.answer(1)
    assert accounts.channel.state(0) == accounts.checks.FIN_CONFIRMED


def test_a_message_whose_fins_all_fail_is_owed(accounts):
    accounts.consumers[0].data_received(accounts.frame(1) + accounts.frame(2))
    accounts.answer(0, GUID, GUID)
    assert accounts.channel.state(0) == accounts.checks.PENDING


def test_an_overtaken_delivery_does_not_change_the_record_of_a_message(accounts):
    accounts.world.ready_ns = 0
    accounts.consumers[1].data_received(accounts.frame(2))
    accounts.consumers[0].data_received(accounts.frame(1))
    accounts.answer(0, GUID)
    assert accounts.channel.state(0) == accounts.checks.FIN_SENT
    accounts.answer(1)
    assert accounts.channel.state(0) == accounts.checks.FIN_CONFIRMED
    assert accounts.world.notes == []


@pytest.mark.parametrize(("timeout_count", "reported"), [(4, 1), (5, 0)])
def test_a_message_that_comes_again_at_once_is_reported_unless_the_daemon_counts_a_timeout(
    accounts, timeout_count, reported
):
    accounts.channel.timeouts_seen = 4
    accounts.world.polled_ns = (time.time_ns(), time.time_ns())
    accounts.consumers[0].data_received(accounts.frame(1) + accounts.frame(2))
    accounts.world.end_round(accounts.channel, timeout_count)
    assert accounts.world.totals["unexplained"] == len(accounts.world.notes) == reported
    assert accounts.world.totals["timed_out"] == 1 - reported


def test_a_finished_message_that_comes_again_after_a_kill_is_reported(accounts):
    accounts.consumers[0].data_received(accounts.frame(1))
    accounts.answer(0)
    accounts.channel.note_kill()
    accounts.world.round += 1
    accounts.consumers[1].data_received(accounts.frame(2))
    assert accounts.world.totals["fin_undone"] == 1
