"""Short runs of scripts/kills/trace_exactness.py, and proof that the comparison notices each difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pyqd.primitives.progress import Progress
from pyqd.trace.database import Database
from tests.support.loops import WAIT_S, module_of, run_loop

exactness: Any = module_of("trace_exactness")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(WAIT_S + 20)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    kind = exactness.TraceExactness
    given = module_of("harness").parse(kind, ["--messages=400"])
    run = kind(given, tmp_path_factory.mktemp("exactness"))
    run.run(Progress(quiet=True))
    return run


@pytest.fixture
def problems(run: Any) -> Iterator[Callable[[str], list[str]]]:
    """Function that changes the tables by a statement and returns the differences. The change is undone."""
    database = Database(run.url)

    def problems_of(statement: str) -> list[str]:
        path = Path(database.store.url.database or "")
        before = path.read_bytes()
        with database.transaction("change") as connection:
            assert connection.execute(sa.text(statement)).rowcount == 1
        database.engine.dispose()
        try:
            check = exactness.Comparison(run)
            check.run()
        finally:
            path.write_bytes(before)
        found: list[str] = check.problems
        return found

    yield problems_of
    database.close()


def test_tables_agree_with_the_clients_over_some_kills() -> None:
    code, report = run_loop("trace_exactness", "--messages=1200", "--kills=3", "--seed=2")
    assert report["differences"] == 0, report["first_differences"]
    assert report["messages"] == 1200
    assert set(report["kills"]) == {"broker", "shipper"}
    assert {"finished", "requeued", "timed_out", "dead_lettered", "cancelled"} <= report["outcomes"].keys()
    assert code == 0


def test_tables_agree_with_the_clients_to_begin_with(run: Any) -> None:
    check = exactness.Comparison(run)
    check.run()
    assert check.problems == []
    assert check.uncertain_deliveries == check.cut_off == 0


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM trace_publications WHERE position = (SELECT min(position) FROM trace_publications)",
        "UPDATE trace_publications SET size = size + 1 WHERE position ="
        " (SELECT max(position) FROM trace_publications WHERE topic = 'numbers')",
        "DELETE FROM trace_deliveries WHERE position = (SELECT min(position) FROM trace_deliveries)",
        "INSERT INTO trace_deliveries SELECT node_id, position + 1000000, message_id, topic, channel, client,"
        " user_agent, attempt, stored_at, sent_at, outcome, outcome_at FROM trace_deliveries LIMIT 1",
        "UPDATE trace_deliveries SET outcome = 'timed_out' WHERE position ="
        " (SELECT max(position) FROM trace_deliveries WHERE outcome = 'finished')",
        "UPDATE trace_deliveries SET client = '1.2.3.4:5' WHERE position ="
        " (SELECT max(position) FROM trace_deliveries)",
        "DELETE FROM trace_events WHERE position = (SELECT max(position) FROM trace_events WHERE event = 'cancelled')",
        "INSERT INTO trace_gaps SELECT node_id, 1, 5, published_at, NULL FROM trace_publications LIMIT 1",
    ],
    ids=lambda statement: " ".join(statement.split()[:3]),
)
def test_a_difference_is_noticed(problems: Callable[[str], list[str]], statement: str) -> None:
    assert problems(statement)
