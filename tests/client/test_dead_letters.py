"""The return of dead letters, by the calls of pyqctl and of the web admin, to a broker that answers in odd ways."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from pyqd.admin.dead_letters import Calls
from pyqd.admin.upstream import Upstream
from pyqd.client.dead_letters import BrokerCalls, return_dead_letters
from pyqd.tools.ctl.contexts import Context, CtlTarget
from pyqd.tools.ctl.nodes import AskedBroker
from tests.support.http_stub import Answer, http_stub, json_answer

Connect = Callable[[str], contextlib.AbstractContextManager[BrokerCalls]]

ROW = {"size": 1, "body": "eA==", "truncated": False, "position": 7}
LETTERS = [{**ROW, "id": "1" * 16, "size": 5000, "truncated": True}, {**ROW, "id": "2" * 16}]


@contextlib.contextmanager
def from_pyqctl(address: str) -> Iterator[BrokerCalls]:
    with AskedBroker(address, CtlTarget(Context()), None, 10.0, tls=False) as broker:
        yield broker


@contextlib.contextmanager
def from_the_web_admin(address: str) -> Iterator[BrokerCalls]:
    with contextlib.closing(Upstream()) as upstream:
        yield Calls(upstream, address)


@pytest.mark.parametrize("connect", [from_pyqctl, from_the_web_admin])
def test_a_long_letter_in_a_rewritten_segment_stays_and_the_others_return(connect: Connect) -> None:
    def answer(path: str, _query: dict[str, str]) -> Answer:
        if path == "/topic/log":
            return json_answer({"message": "POSITION_GONE", "earliest": 9}, 410)
        return json_answer({"channels": [], "results": [{"status": "done"}]})

    with http_stub(answer) as stub, connect(stub.address) as broker:
        results = list(return_dead_letters(broker, "dead", "held", LETTERS, "orders", "lent"))
    assert [result["state"] for result in results] == ["failed", "returned"]
    assert "consume it instead" in results[0]["error"]


@pytest.mark.parametrize("connect", [from_pyqctl, from_the_web_admin])
def test_another_refusal_of_a_letters_body_ends_the_return(connect: Connect) -> None:
    def answer(path: str, _query: dict[str, str]) -> Answer:
        return json_answer({"message": "INTERNAL_ERROR"}, 500)

    with http_stub(answer) as stub, connect(stub.address) as broker:
        results = list(return_dead_letters(broker, "dead", "held", LETTERS, "orders", "lent"))
    assert [result["state"] for result in results] == ["failed"]
    assert "INTERNAL_ERROR" in results[0]["error"]
