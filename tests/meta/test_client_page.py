"""docs/client.md names every setting and error of the client; its programs are those of docs/examples."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import pyqd.client
from pyqd.client import Consumer, Producer, RetryPolicy, Settings, aio
from pyqd.client.consumer import FLOW_NAMES
from pyqd.client.core.flow import FlowSettings
from tests.meta.repository import ROOT
from tests.support.pages import sections_of

DOCS = ROOT / "docs"
PAGE = DOCS / "client.md"
EXAMPLES = {path.name: path for path in sorted((DOCS / "examples").glob("*.py"))}
PAGES = [PAGE, DOCS / "client-recipes.md", DOCS / "migrate-client.md"]


def tables(title: str) -> list[dict[str, str]]:
    """Return the tables of a section: first cell to second cell, without the backquotes."""
    section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    found: list[dict[str, str]] = []
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|\n").split(" |")] for line in table.splitlines()[2:]]
        found.append({row[0]: row[1].strip("`") for row in rows})
    return found


def defaults_of(kind: type) -> dict[str, object]:
    """Return the parameters of a constructor that have defaults."""
    parameters = inspect.signature(kind).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}


@pytest.mark.parametrize(("number", "kind"), [(0, Producer), (1, Consumer)])
def test_the_page_has_the_parameters_of_both_faces_and_their_defaults(number: int, kind: type) -> None:
    named = {name.strip("`"): default for name, default in tables("Settings")[number].items()}
    documented = {name: default for name, default in named.items() if default}
    assert documented == {name: repr(default) for name, default in defaults_of(kind).items()}
    assert defaults_of(getattr(aio, kind.__name__)) == defaults_of(kind)


def test_the_page_has_every_shared_setting_and_its_default() -> None:
    named = {name.strip("`"): default for name, default in tables("Settings")[2].items()}
    expected = {field.name: repr(field.default) for field in dataclasses.fields(Settings)}
    assert named == expected | {"user_agent": "pyqd-client/VERSION"}


def test_the_page_has_the_settings_of_flow_control_and_their_defaults() -> None:
    named = {name.strip("`"): default for name, default in tables("Settings")[3].items()}
    assert named == {name: repr(getattr(FlowSettings(), name)) for name in FLOW_NAMES}


def test_the_page_has_every_field_of_the_retry_policy_and_its_default() -> None:
    named = {name.strip("`"): default for name, default in tables("Retries and dead letters")[0].items()}
    assert named == {field.name: repr(field.default) for field in dataclasses.fields(RetryPolicy)}


def test_the_page_has_every_error() -> None:
    errors = {name for name in pyqd.client.__all__ if name.endswith("Error")} - {"ClientError"}
    assert {name.strip("`") for name in tables("Errors")[0]} == errors


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_programs_of_a_page_are_those_of_the_examples(page: Path) -> None:
    saved = {
        block.saved_as: block.text
        for blocks in sections_of(page).values()
        for block in blocks
        if block.saved_as in EXAMPLES
    }
    assert saved == {name: EXAMPLES[name].read_text() for name in saved}


def test_every_example_is_on_a_page() -> None:
    shown = {block.saved_as for page in PAGES for blocks in sections_of(page).values() for block in blocks}
    assert set(EXAMPLES) <= shown
