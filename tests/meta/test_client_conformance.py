"""The page on the client's conformance names tests that exist, one in each row."""

import re

from tests.meta.repository import ROOT

PAGE = ROOT / "docs/client-conformance.md"


def test_every_row_names_tests_that_exist() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    existing = set(re.findall(r"def (test_\w+)\(", sources))
    tables = PAGE.read_text().split("## Differences from go-nsq")[0]
    rows = [
        line for line in tables.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| behaviour"))
    ]
    assert len(rows) > 50
    named = [re.findall(r"`(test_\w+)`", row.rsplit("|", 2)[1]) for row in rows]
    assert [row for row, tests in zip(rows, named, strict=True) if not tests] == []
    assert {test for tests in named for test in tests} - existing == set()
