"""docs/spark.md does what it says: every block of Python and every command in it runs here, against a real broker.

A section of the page is one test, with a broker of its own. Only what cannot be had is replaced: the broker's address,
the directories, the cluster's master. Where a section has no broker start and publish, one stands ready with orders.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.meta.repository import ROOT, project
from tests.support.server import Daemon
from tests.support.spark_cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]

PAGE = ROOT / "docs" / "spark.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"[Ss]ave it as `([\w.-]+)`")
COMMAND_WAIT_S = 200
ORDERS = 1000
# Not run by an interpreter of ours: what they look like when they run is shown beside them, or they are no programs.
NOT_RUN = ("text", "json", "sql")
# Where a master is named that is not to be had, its commands run here.
LOCAL_MASTER = "local[2]"
SPARK_DEFAULTS = """\
spark.driver.memory 512m
spark.executor.memory 512m
spark.driver.host 127.0.0.1
spark.ui.enabled false
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""


@dataclass(frozen=True)
class Block:
    """A fenced block. line: where it starts in the page. saved_as: the file it is to be saved as, or empty."""

    language: str
    text: str
    line: int
    saved_as: str = ""

    def commands(self) -> list[str]:
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def sections(page: str) -> dict[str, list[Block]]:
    """Return the blocks of each section that has any, by its heading of the second level."""
    found: dict[str, list[Block]] = {}
    headings = [(match.start(), match[1]) for match in re.finditer(r"^## (.+)$", page, re.MULTILINE)]
    for match in FENCE.finditer(page):
        heading = next(title for start, title in reversed(headings) if start < match.start())
        above = page[: match.start()].rstrip().rpartition("\n\n")[2]
        saved = SAVED.search(above)
        line = page.count("\n", 0, match.start()) + 2
        found.setdefault(heading, []).append(Block(match[1], match[2], line, saved[1] if saved else ""))
    return found


SECTIONS = sections(PAGE.read_text())


class Reader:
    """Somebody who follows a section of the page in a directory of their own."""

    def __init__(self, fixture: Callable[[str], Any], broker: Daemon, directory: Path) -> None:
        self.fixture = fixture
        self.broker = broker
        self.directory = directory
        self.names: dict[str, object] = {}
        self.started: list[tuple[str, subprocess.Popen[bytes], Path]] = []

    def here(self, text: str) -> str:
        """Return a text of the page with the addresses and directories that there are here."""
        text = text.replace("127.0.0.1:4151", "{}:{}".format(*self.broker.http_address))
        text = text.replace("127.0.0.1:4150", "{}:{}".format(*self.broker.tcp_address))
        return re.sub(r"(?<![\w.])/(?:tmp/tour|var/lib/spark|opt)(?=/)", str(self.directory), text)

    def follow(self, block: Block) -> None:
        if block.saved_as:
            (self.directory / block.saved_as).write_text(self.here(block.text))
        elif block.language == "python":
            self.names.setdefault("spark", self.fixture("spark"))
            exec(compile(self.here(block.text), f"{PAGE.name}, line {block.line}", "exec"), self.names)
        elif block.language == "console":
            for command in block.commands():
                self.run(command)
        else:
            assert block.language in NOT_RUN, f"line {block.line}: nothing runs a block of {block.language}"

    def run(self, command: str) -> None:
        if command.startswith("pip install "):
            check_installable(shlex.split(command)[2:])
        elif command.startswith("pyqd "):
            # The broker of the section was started with its flags.
            return
        else:
            self.run_in_shell(command)

    def run_in_shell(self, command: str) -> None:
        environment = os.environ | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "spark")]),
            "PYSPARK_PYTHON": sys.executable,
        }
        if command.startswith("spark-submit "):
            if not self.started:
                (self.directory / "spark-defaults.conf").write_text(SPARK_DEFAULTS)
            environment["SPARK_CONF_DIR"] = str(self.directory)
            environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
            if "--master spark:" in command:
                running: Cluster = self.fixture("two_workers")
                environment["PYSPARK_PYTHON"] = str(running.python)
                command = re.sub(r"--master \S+", f"--master {running.master}", command)
            else:
                command = re.sub(r"--master \S+", f"--master {LOCAL_MASTER}", command)
                command = command.replace("--deploy-mode cluster", "").replace("local://", "")
        output = self.directory / f"output-{len(self.started)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", self.here(command)],
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.started.append((command, process, output))
        # Programs that are submitted know nothing of each other, and spend most of their time on starting.
        if not command.startswith("spark-submit "):
            self.finish()

    def finish(self) -> None:
        """Wait for what was started, and look at what it has said."""
        while self.started:
            command, process, output = self.started[0]
            code = process.wait(COMMAND_WAIT_S)
            said = output.read_text(errors="replace")
            assert code == 0, f"{command}\n{said}"
            if command.startswith("spark-submit "):
                assert f"{ORDERS} orders on 1 brokers" in said
            del self.started[0]

    def stop(self) -> None:
        """End what is still running."""
        for _, process, _ in self.started:
            process.kill()
            process.wait()
        if "spark" in self.names:
            for query in self.fixture("spark").streams.active:
                query.stop()


def check_installable(requirements: Sequence[str]) -> None:
    """Assert that what is said to be installed is pyqd with extras that there are, or one of its dependencies."""
    extras = project()["project"]["optional-dependencies"]
    for requirement in requirements:
        match = re.fullmatch(r"([\w-]+)(?:\[([\w-]+)\])?", requirement)
        assert match is not None, requirement
        if match[1] != "pyqd":
            assert any(match[1] in entry for entry in extras["spark"]), requirement
        elif match[2] is not None:
            assert match[2] in extras, requirement


def flags_of_broker(blocks: Sequence[Block]) -> list[str] | None:
    """Return the flags with which a section starts its broker, without its directory; None where it starts none."""
    commands = [command for block in blocks if block.language == "console" for command in block.commands()]
    for command in commands:
        if command.startswith("pyqd "):
            return [word for word in shlex.split(command)[1:] if not word.startswith("--data-path")]
    return None


def publish_orders(broker: Daemon) -> None:
    body = "\n".join(json.dumps({"order": number, "amount": 100 * number}) for number in range(1, ORDERS + 1))
    assert broker.http("POST", "/mpub", body.encode(), topic="orders").status == 200


@pytest.mark.parametrize("title", SECTIONS)
def test_a_section_of_the_page_can_be_followed_word_by_word(
    title: str,
    make_broker: Callable[..., Daemon],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    flags = flags_of_broker(SECTIONS[title])
    broker = make_broker(*(flags or []))
    if flags is None:
        publish_orders(broker)
    reader = Reader(request.getfixturevalue, broker, tmp_path)
    try:
        for block in SECTIONS[title]:
            reader.follow(block)
        reader.finish()
    finally:
        reader.stop()


def test_blocks_are_read_from_a_page() -> None:
    page = "# T\n\n## One\n\n```python\nx = 1\n```\n\nNow save it as `a.py`:\n\n```python\ny\n```\n\n## Two\n\ntext\n\n"
    page += "```console\n$ a \\\n    b\nout\n$ c\n```\n"
    found = sections(page)
    assert [(block.text, block.line, block.saved_as) for block in found["One"]] == [
        ("x = 1\n", 6, ""),
        ("y\n", 12, "a.py"),
    ]
    assert [block.commands() for block in found["Two"]] == [["a      b", "c"]]
