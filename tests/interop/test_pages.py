"""Pages of the documentation work: each section, and each how-to, is followed unchanged, in an empty home directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pyqd.broker.broker import Broker
from pyqd.config.options import parse_args
from tests.interop.process import ROOT
from tests.support.machine import Machine
from tests.support.nsqd_data import messages, write_metadata, write_queue
from tests.support.pages import SHELLS, Block, sections_of
from tests.support.reader import Reader

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(400)]

DOCS = ROOT / "docs"
# Change the users and services of the machine; tests/meta/test_contrib.py checks the unit.
NOT_FOLLOWED = ("README", "systemd")
# A how-to is one task from its first block to its last.
HOW_TO = {
    path.relative_to(DOCS).as_posix(): {"": [block for blocks in sections_of(path).values() for block in blocks]}
    for path in sorted((DOCS / "how-to").glob("*.md"))
    if path.stem not in NOT_FOLLOWED
}
PAGES = HOW_TO | {
    name: sections_of(DOCS / name)
    for name in (
        "http.md",
        "configuration.md",
        "interchange.md",
        "cluster.md",
        "lookupd.md",
        "testing.md",
        "celery.md",
        "dramatiq.md",
        "client-telemetry.md",
        "client.md",
        "migrate-client.md",
    )
}
GO_WAIT_S = 120
BLOCK_WAIT_S = 120.0
PROGRAMS = ("curl", "openssl", "php", "go", "tar")
# Variables that name NSQ's own programs, as in other tests.
NSQ_PROGRAMS = {"nsqd": "NSQD", "nsqlookupd": "NSQLOOKUPD"}


def obstacle(blocks: list[Block]) -> str:
    """Return the requirement of a section that this machine lacks, or an empty string."""
    text = "\n".join(block.text for block in blocks if block.language == "sh")
    for program in PROGRAMS:
        if f"{program} " in text and shutil.which(program) is None:
            return f"{program} is not installed"
    for program, variable in NSQ_PROGRAMS.items():
        if re.search(rf"^{program} ", text, re.MULTILINE) and variable not in os.environ:
            return f"no {program}: {variable} may name one"
    if (
        "php " in text
        and "curl" not in subprocess.run(["php", "-m"], capture_output=True, text=True, check=True).stdout
    ):
        return "php has no extension for curl"
    return ""


def fetch_modules(commands: str, directory: Path) -> dict[str, str]:
    """Fetch the Go modules of a section into this machine's cache, because a namespace has no network.

    Returns: settings by which Go finds them there. Skips the test if they cannot be fetched.
    """
    wanted = re.findall(r"^go get (\S+)$", commands, re.MULTILINE)
    if not wanted:
        return {}
    directory.mkdir()
    environment = os.environ | {"GOFLAGS": "-mod=mod"}

    def go(*words: str) -> str:
        command = ["go", *words]
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=GO_WAIT_S, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    go("mod", "init", "example.com/fetched")
    go("get", *wanted)
    names = ("GOMODCACHE", "GOCACHE")
    return dict(zip(names, go("env", *names).splitlines(), strict=True)) | {"GONOSUMDB": "*"}


def prepare_broker(reader: Reader) -> None:
    """Start the broker that a reference presumes, and let each call that it refuses fail the test."""
    (reader.machine.home / "data").mkdir()
    reader.start_broker("pyqd --data-path=data")
    (reader.machine.directory / ".curlrc").write_text("fail-with-body\n")
    reader.machine.environment["CURL_HOME"] = str(reader.machine.directory)


def prepare_nsq(reader: Reader) -> None:
    """Put NSQ's programs on the PATH."""
    programs = reader.machine.directory / "bin"
    programs.mkdir()
    for program, variable in NSQ_PROGRAMS.items():
        (programs / program).symlink_to(Path(os.environ[variable]).resolve())
    reader.machine.environment["PATH"] += f"{os.pathsep}{programs}"


def prepare_nsqd(reader: Reader) -> None:
    """Leave the data of a stopped nsqd at the path in the page."""
    data = reader.machine.var_lib / "nsqd"
    data.mkdir()
    write_metadata(data, {"orders": ["email"]})
    write_queue(data, "orders:email", messages(1, 2, 3))


def prepare_pyqd(reader: Reader) -> None:
    """Leave the data of a stopped pyqd at the path in the page."""
    data = reader.machine.var_lib / "pyqd"
    data.mkdir()
    broker = Broker(parse_args([f"--data-path={data}"]))
    broker.load()
    broker.topic("orders").channel("email")
    broker.close()


def prepare_config(reader: Reader) -> None:
    """Save the file that an earlier section shows, and make the directory that it names."""
    (reader.machine.var_lib / "pyqd").mkdir()
    for block in PAGES["configuration.md"]["Configuration file"]:
        reader.follow(block)


def prepare_cluster(reader: Reader) -> None:
    """Start the lookup daemon and the two brokers of the page's first section."""
    for block in PAGES["cluster.md"]["First steps"]:
        reader.follow(block)


def prepare_plugin(reader: Reader) -> None:
    """Name pytest's plugins, because the entry points of an environment may be older than the sources."""
    reader.machine.environment |= {
        # In the usual place, pytest removes at its end the files of earlier runs of the suite, which takes minutes.
        "PYTEST_DEBUG_TEMPROOT": str(reader.machine.home),
        "PYTEST_ADDOPTS": "-p pyqd.testing.plugin -p no:cacheprovider",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


PREPARED: Mapping[tuple[str, str], Callable[[Reader], None]] = {
    ("how-to/replace-nsqd.md", ""): prepare_nsq,
    ("http.md", "Publishing"): prepare_broker,
    ("http.md", "Single messages"): prepare_broker,
    ("configuration.md", "Checking"): prepare_config,
    ("interchange.md", "From nsqd to pyqd"): prepare_nsqd,
    ("interchange.md", "From pyqd to nsqd"): prepare_pyqd,
    ("interchange.md", "Looking into a data directory"): prepare_pyqd,
    ("cluster.md", "Add and remove a broker"): prepare_cluster,
    ("cluster.md", "Upgrade a cluster"): prepare_cluster,
    ("dramatiq.md", "Tests"): prepare_plugin,
    **{("client.md", title): prepare_broker for title in PAGES["client.md"] if not title.startswith("From zero")},
    **{("testing.md", title): prepare_plugin for title in PAGES["testing.md"]},
}


def followed() -> list[tuple[str, str]]:
    """Return page and title of each section that has something to be typed."""
    found = []
    for page, titles in PAGES.items():
        for title, blocks in titles.items():
            typed = (*SHELLS, "python") if page == "client.md" else SHELLS
            if any(block.language in typed and not block.saved_as for block in blocks):
                found.append((page, title))
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


@pytest.mark.parametrize(("page", "title"), followed())
def test_a_section_can_be_followed_word_by_word(page: str, title: str, machine: Machine, tmp_path: Path) -> None:
    blocks = PAGES[page][title]
    if missing := obstacle(blocks):
        pytest.skip(missing)
    machine.environment |= fetch_modules("\n".join(block.text for block in blocks), tmp_path / "modules")
    reader = Reader(machine, DOCS / page, wait_s=BLOCK_WAIT_S)
    PREPARED.get((page, title), lambda reader: None)(reader)
    for block in blocks:
        reader.follow(block)
    for log in (machine.home / "pyqd.log", machine.directory / "broker.log"):
        assert not log.exists() or "Traceback" not in log.read_text()
    reader.close()


def test_a_command_that_fails_fails_the_reader(machine: Machine) -> None:
    reader = Reader(machine, DOCS / "page.md", wait_s=BLOCK_WAIT_S)
    reader.follow(Block("sh", "x=1\n", 10))
    reader.follow(Block("sh", 'echo "x is $x"\n', 20))
    reader.follow(Block("text", "x is 1\n", 30, promised=True))
    with pytest.raises(AssertionError, match=r"page.md, line 40: promised\nx is 2\n\nbut printed\nx is 1"):
        reader.follow(Block("text", "x is 2\n", 40, promised=True))
    with pytest.raises(AssertionError, match=r"page.md, line 50 failed\nbefore"):
        reader.follow(Block("sh", "echo before; false\necho behind\n", 50))
    reader.close()


def test_a_program_that_fails_fails_the_reader(machine: Machine) -> None:
    reader = Reader(machine, DOCS / "page.md", wait_s=BLOCK_WAIT_S)
    reader.follow(Block("python", "x = 1\n", 10))
    reader.follow(Block("python", "print(x)\n", 20))
    assert reader.printed == "1\n"
    with pytest.raises(AssertionError, match=r"(?s)page.md, line 30 failed.*NameError"):
        reader.follow(Block("python", "y\n", 30))
    reader.close()


def test_a_block_that_does_not_end_fails_the_reader(machine: Machine) -> None:
    reader = Reader(machine, DOCS / "page.md", wait_s=0.1)
    with pytest.raises(AssertionError, match=r"page\.md, line 10 takes more than"):
        reader.follow(Block("sh", "sleep 1000\n", 10))
    reader.close()
