"""For every command line, `--check-config` prints a file with the same settings."""

import string
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pyqd.apps.program import effective
from pyqd.config.configfile import read_config, shown, value_of
from pyqd.config.options import DAEMON, FLAGS
from pyqd.primitives.durations import INT64_MAX, INT64_MIN
from pyqd.primitives.goflags import BOOL, DURATION, INT, STRING, Flag
from tests.support.examples import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
KEYED = [flag for flag in FLAGS if flag.config_key is not None]


def values(flag: Flag) -> st.SearchStrategy[Any]:
    """Return the values that a flag may have."""
    if flag.type is BOOL:
        return st.booleans()
    if flag.type in (INT, DURATION):
        least = INT64_MIN if flag.minimum is None else flag.minimum
        return st.integers(least, INT64_MAX if flag.maximum is None else flag.maximum)
    if flag.type is STRING:
        return st.lists(TEXT, max_size=4).map(tuple) if flag.repeatable else TEXT
    return st.just(flag.default_value())


@st.composite
def givens(draw: st.DrawFn) -> dict[str, Any]:
    """Draw values of some flags, by name."""
    flags = draw(st.lists(st.sampled_from(KEYED), unique=True, max_size=8))
    return {flag.name: draw(values(flag)) for flag in flags}


@settings(max_examples=examples(50))
@given(givens())
def test_a_printed_configuration_is_read_back_unchanged(wanted: dict[str, Any]) -> None:
    asked = DAEMON.settings_of(wanted)
    if asked.problems:
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pyqd.toml"
        path.write_text(effective(asked), newline="")
        file = read_config(str(path))
    for flag in KEYED:
        assert flag.config_key is not None
        assert value_of(flag, file.values[flag.config_key]) == getattr(asked.options(), flag.attribute)


@settings(max_examples=examples(100))
@given(st.sampled_from(KEYED), st.data())
def test_a_value_is_read_as_it_is_shown(flag: Flag, data: st.DataObject) -> None:
    value = data.draw(values(flag))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pyqd.toml"
        path.write_text(f"{flag.config_key} = {shown(flag, value)}\n", newline="")
        file = read_config(str(path))
    assert file.line_of(str(flag.config_key)) == 1
    assert value_of(flag, file.values[str(flag.config_key)]) == value


@settings(max_examples=examples(100))
@given(st.text(string.printable, max_size=200))
def test_no_text_of_a_file_is_more_than_an_error(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pyqd.toml"
        path.write_text(text, newline="")
        asked = DAEMON.settings_of({"config": str(path)})
    assert isinstance(asked.problems, tuple)
