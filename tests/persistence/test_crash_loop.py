"""A short run of scripts/kills/crash_loop.py, and proof that it notices the faults it is made for."""

import random
import shlex
import struct
import sys
import threading
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
    assert report["delivered"] > report["finished"] > 0


def test_a_daemon_that_forgets_is_found_out(tmp_path):
    forgetful = tmp_path / "forgetful"
    forgetful.write_text(
        f"""#!/bin/sh
for argument; do case $argument in -data-path=*) path=${{argument#-data-path=}}; esac; done
for ledger in "$path"/topics/*/plain.channel/ledger; do
    test -e "$ledger" && dd if=/dev/zero of="$ledger" bs=1 seek=24 count=8 conv=notrunc 2>/dev/null
done
exec {shlex.quote(sys.executable)} -m pyqd.apps.daemon "$@"
"""
    )
    forgetful.chmod(0o755)
    code, report = run_loop("crash_loop", "--kills=2", "--seed=3", "--messages=300", f"--nsqd={forgetful}")
    assert (code, report["ok"]) == (1, False)
    assert report["notes"]


class Accounts(NamedTuple):
    """books, channel, taker: of the crash loop; body: of its message."""

    books: Any
    channel: Any
    taker: Any
    body: bytes

    def deliver(self, attempts: int) -> None:
        """Let a delivery of the message come, with a fence after its command."""
        self.taker.take(struct.pack(">qH16s", 0, attempts, GUID) + self.body)
        self.taker.unanswered.append([])

    def answer(self, *failed: bytes) -> None:
        """Let the daemon answer the oldest fence: with an error for each failed id, and for the fence."""
        for guid in (*failed, b"ffffffff00000001"):
            self.taker.on_error(b"E_FIN_FAILED FIN " + guid + b" failed ID not in flight")

    def look(self, **counts: int) -> None:
        zero = dict.fromkeys(("depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count"), 0)
        channel = {"channel_name": self.channel.name, **zero, **counts}
        self.books.look(self.channel.topic, {"message_count": 1, "depth": 0, "channels": [channel]})


@pytest.fixture
def accounts():
    """The books of a crash loop with one channel of a topic, and one message that was acknowledged."""
    loop = module_of("crash_loop")
    books = loop.Books(2)
    topic = books.topics[1]
    topic.add(1, 0, random.Random(1))
    topic.acknowledged[0] = 1
    (channel,) = topic.channels
    taker = loop.Taker(0, threading.Event(), random.Random(1), "topic1 plain", 200)
    taker.books, taker.channel, taker.is_rough, taker.link = books, channel, False, unittest.mock.Mock()
    taker.unanswered.append([])
    return Accounts(books, channel, taker, topic.body(0))


def test_a_message_that_comes_again_before_its_fin_is_confirmed_has_one_command(accounts):
    accounts.deliver(1)
    accounts.deliver(2)
    accounts.answer()
    accounts.answer()
    accounts.look(timeout_count=1)
    accounts.books.settle()
    assert accounts.books.totals["finished"] == 1
    assert accounts.books.notes == []


def test_a_message_whose_fin_failed_is_owed(accounts):
    accounts.deliver(1)
    accounts.answer(GUID)
    accounts.look(depth=1)
    assert accounts.books.notes == []
    accounts.books.settle()
    assert accounts.books.totals["lost"] == 1


@pytest.mark.parametrize(("timeout_count", "reported"), [(0, 1), (1, 0)])
def test_a_message_that_comes_again_at_once_is_reported_unless_the_daemon_counts_a_timeout(
    accounts, timeout_count, reported
):
    accounts.deliver(1)
    accounts.deliver(2)
    accounts.look(timeout_count=timeout_count)
    assert accounts.books.totals["unexplained"] == len(accounts.books.notes) == reported


def test_a_finished_message_that_comes_again_after_a_kill_is_reported(accounts):
    accounts.deliver(1)
    accounts.answer()
    accounts.books.life += 1
    accounts.deliver(2)
    assert accounts.books.totals["fin_undone"] == 1


def test_a_message_that_is_gone_after_a_kill_is_reported(accounts):
    accounts.look()
    assert accounts.books.totals["counter_errors"] == 1
