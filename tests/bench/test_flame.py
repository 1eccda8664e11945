"""`make flame`: with a short load, and with programs of the tests' own in place of python and py-spy."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("bench.sink", reason="built only with PYQD_BUILD_BENCH=1")

from bench.server import REPOSITORY

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

NO_PERMISSION = ("permission denied", "operation not permitted", "eperm")
# Publishing and delivery, from the socket to the log and back.
HOT = (
    "pyqd.hot.tcp.ioloop.IoLoop.run_pass",
    "pyqd.hot.broker.topic.TopicCore.add_batch",
    "pyqd.hot.diskqueue.batchwriter.BatchWriter.append",
    "pyqd.hot.tcp.output.ClientOutput.put_delivery",
    "pyqd.hot.broker.channel.ChannelCore.finish",
    "pyqd.hot.tcp.output.ClientOutput.flush",
)
SCRIPT = REPOSITORY / "scripts" / "flame.sh"
# Runs the argument of -c, as the script's own probe does; for a benchmark it only writes down the arguments.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then exec "{python}" "$@"; fi
printf '%s\\n' "$*" >"{directory}/benchmark"
"""
SERVER = "import socket, time; listening = socket.create_server(('127.0.0.1', 0)); time.sleep(120)"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a directory with a python that runs no benchmark and a py-spy that may read every process."""
    directory = tmp_path / "bin"
    directory.mkdir()
    put(directory / "python", PYTHON.format(python=sys.executable, directory=tmp_path))
    put(directory / "py-spy", "#!/bin/sh\nexit 0\n")
    return directory


def put(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def run(programs: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLAME_")}
    given = {"FLAME_BIN": str(programs), "FLAME_OUTPUT": str(programs / "flame.svg"), **environment}
    return subprocess.run(
        [SCRIPT, *arguments], env={**inherited, **given}, capture_output=True, text=True, timeout=50, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], ["-w", "e2e"]),
        (["-w", "pub"], ["-w", "pub"]),
        (["-wpub"], ["-wpub"]),
        (["--workload=pub", "--scale=5"], ["--workload=pub", "--scale=5"]),
        (["--server-flag=-node-id=5 6"], ["-w", "e2e", "--server-flag=-node-id=5 6"]),
    ],
)
def test_a_benchmark_that_is_given_replaces_the_default(
    programs: Path, tmp_path: Path, arguments: list[str], said: list[str]
) -> None:
    done = run(programs, *arguments)
    command = (tmp_path / "benchmark").read_text().rstrip("\n")
    assert command.partition("--scale=2 ")[2] == " ".join(said)
    assert "the load has not started" in done.stderr


def test_the_output_of_the_benchmark_is_kept_beside_the_picture(programs: Path, tmp_path: Path) -> None:
    run(programs)
    assert f" --results={programs}/flame " in (tmp_path / "benchmark").read_text()


def test_two_benchmarks_at_a_time_are_refused(programs: Path, tmp_path: Path) -> None:
    done = run(programs, "-w", "pub", "--workload=mpub")
    assert done.returncode == 1
    assert "flame: one benchmark at a time" in done.stderr
    assert not (tmp_path / "benchmark").exists()


def test_without_py_spy_there_is_no_load_but_a_word_on_how_to_install_it(programs: Path, tmp_path: Path) -> None:
    (programs / "py-spy").unlink()
    done = run(programs)
    assert done.returncode == 1
    assert "-m pip install py-spy" in done.stderr
    assert not (tmp_path / "benchmark").exists()


def test_without_permission_there_is_no_load_but_a_word_on_how_to_get_it(programs: Path, tmp_path: Path) -> None:
    put(programs / "py-spy", "#!/bin/sh\necho Permission Denied >&2\nexit 1\n")
    done = run(programs)
    assert done.returncode == 1
    assert "Permission Denied\nflame: py-spy cannot read another process here" in done.stderr
    assert "kernel.yama.ptrace_scope=0" in done.stderr
    assert not (tmp_path / "benchmark").exists()


def test_the_output_of_py_spy_is_shown_when_the_load_fails(programs: Path) -> None:
    put(programs / "py-spy", "#!/bin/sh\nif [ $1 = record ]; then echo process is gone; exit 1; fi\n")
    done = run(
        programs,
        FLAME_DAEMON=f"'{sys.executable}' -c \"{SERVER}\"",
        FLAME_LOAD="""(
            "$FLAME_TARGET" & server=$!
            until grep -q gone "${FLAME_TARGET%/*}/py-spy.log"; do sleep 0.05; done
            kill $server
            exit 7
        )""",
    )
    assert done.returncode == 1
    assert "process is gone\nflame: the load failed" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_flame_graph_shows_publishing_and_delivery_by_the_names_in_the_source(tmp_path: Path) -> None:
    image = tmp_path / "flame.svg"
    done = subprocess.run(
        [SCRIPT, "--scale=0.5", "--unpinned"],
        env={
            **os.environ,
            "FLAME_BIN": os.path.dirname(sys.executable),
            "FLAME_OUTPUT": str(image),
            "FLAME_WORKLOAD": "e2e",
        },
        capture_output=True,
        text=True,
        timeout=150,
    )
    said = done.stdout + done.stderr
    if done.returncode and any(sign in said.lower() for sign in NO_PERMISSION):
        pytest.skip("py-spy may not trace here: it takes root or kernel.yama.ptrace_scope=0")
    assert done.returncode == 0, said
    samples = dict.fromkeys(HOT, 0)
    for group in ElementTree.parse(image).getroot().iter("{http://www.w3.org/2000/svg}g"):
        name = group.attrib["data-name"]
        if name in samples:
            samples[name] += int(group.attrib["data-samples"])
    assert all(samples.values()), samples
    stacks = image.with_suffix(".txt").read_text()
    assert all(name in stacks for name in HOT)
