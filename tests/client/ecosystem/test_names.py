"""Names of topics and channels for queues."""

import re

import pytest

from pyqd.client.core.commands import check_channel, check_topic
from pyqd.client.ecosystem.names import nsq_name

QUEUES = [
    "celery",
    "orders.high-priority_1",
    "celery@host.celery.pidbox",
    "ä",
    "",
    "x" * 65,
    "a/b",
    "a b",
    "x" * 300 + "@",
]


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("is_ephemeral", [False, True])
def test_every_queue_has_a_name_that_the_protocol_allows(queue: str, is_ephemeral: bool) -> None:
    name = nsq_name(queue, is_ephemeral=is_ephemeral)
    check_topic(name)
    check_channel(name)
    assert name.endswith("#ephemeral") is is_ephemeral
    assert nsq_name(queue, is_ephemeral=is_ephemeral) == name


def test_a_name_that_the_protocol_allows_stays_as_it_is() -> None:
    assert [nsq_name(name) for name in ("celery", "a.b-c_9", "x" * 54)] == ["celery", "a.b-c_9", "x" * 54]
    assert nsq_name("events#ephemeral") == "events#ephemeral"


def test_a_changed_name_stays_readable() -> None:
    assert re.fullmatch(r"celery-host\.celery\.pidbox\.[0-9a-f]{12}", nsq_name("celery@host.celery.pidbox"))


def test_queues_that_differ_in_forbidden_characters_have_different_topics() -> None:
    names = [nsq_name(queue) for queue in ("a@b", "a/b", "a b", "a-b", "x" * 64 + "1", "x" * 64 + "2")]
    assert len(set(names)) == len(names)
