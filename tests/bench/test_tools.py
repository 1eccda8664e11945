"""Tests of bench.tools: command-line tools in turns."""

from pathlib import Path

import pytest

from bench import tools
from bench.server import Target
from bench.setting import Cores
from bench.tool_run import Run

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow


@pytest.mark.slow
def test_each_tool_is_measured_against_a_broker() -> None:
    for tool in tools.TOOLS:
        (line,) = tools.measure(tool, Target.parse("pyqd"), None, Cores(), 1, 300, 20)
        assert line.startswith(f"| {tool.name} | pyqd | ")


def test_the_ratio_is_the_median_of_neighbouring_runs() -> None:
    rates = {"to_pyq": [10.0, 40.0, 90.0], "to_nsq": [10.0, 20.0, 30.0]}
    assert tools.rows("nsqd", rates, tools.TOOLS[0]) == [
        "| to_pyq | nsqd | 40 (10 .. 90) | 2.00 (1.00 .. 3.00) |",
        "| to_nsq | nsqd | 20 (10 .. 30) |  |",
    ]


def test_a_tool_that_fails_ends_the_measurement(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="ended with 1"):
        Run(("false",), None, "t", 1, 1, None, tmp_path).timed()  # type: ignore[arg-type]
