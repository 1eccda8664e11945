"""GET /debug/profile: with programs in the profiler's place, and with py-spy."""

import os
import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.api.conftest import HttpApp
from tests.support.server import Reply, wait_until

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

TEXT = "text/plain; charset=utf-8"
# Function and file, in stacks and pictures.
STATS = "StatusRoutes.stats (pyqd/"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    return directory


@pytest.fixture
def app(tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpApp]:
    """A server that looks for its profiler in `tools` alone."""
    monkeypatch.setenv("PROFILERS", str(tools))
    running = HttpApp(tmp_path)
    yield running
    assert running.stop() == 0, running.log_text()


def install(tools: Path, text: str) -> None:
    path = tools / "py-spy"
    command = shlex.join([sys.executable, "-c", f"import sys\n{text}"])
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)


def text_of(reply: Reply, status: int) -> str:
    assert (reply.status, reply.headers["Content-Type"]) == (status, TEXT), reply
    return reply.body.decode()


def test_a_missing_profiler_is_501(app: HttpApp) -> None:
    text = text_of(app.get("/debug/profile?seconds=1"), 501)
    assert text == "py-spy is not installed: pip install 'pyqd[profile]'\n"
    assert text_of(app.get("/debug/pprof/profile"), 501) == text


def test_a_profiler_that_may_not_trace_is_503(app: HttpApp, tools: Path) -> None:
    install(tools, "print('Permission Denied: Try running again with elevated permissions')\nsys.exit(1)")
    text = text_of(app.get("/debug/profile?seconds=1"), 503)
    assert text.startswith("py-spy may not trace this process: Permission Denied")
    assert "ptrace_scope" in text


def test_a_profiler_that_fails_is_503(app: HttpApp, tools: Path) -> None:
    install(tools, "print('something else')\nsys.exit(3)")
    assert text_of(app.get("/debug/profile"), 503) == "py-spy ended with code 3: something else\n"
    install(tools, "sys.exit(0)")
    assert text_of(app.get("/debug/profile"), 503).startswith("py-spy ended with code 0")


def test_a_format_that_is_unknown_is_400(app: HttpApp) -> None:
    reply = app.get("/debug/profile?format=png")
    assert (reply.status, reply.body) == (400, b'{"message":"INVALID_FORMAT"}')


def profile_that_shows_load(app: HttpApp, target: str) -> Reply:
    """Return the first profile with a request for /stats: on a busy machine a second may hold none. Else the last."""
    for seconds in (1, 2, 4, 4):
        reply = app.get(f"{target}&seconds={seconds}")
        if STATS.encode() in reply.body:
            break
    return reply


@pytest.mark.slow
def test_py_spy_draws_a_flame_graph_of_the_daemon_and_returns_its_stacks(tmp_path: Path) -> None:
    app = HttpApp(tmp_path)
    stopped = threading.Event()

    def load() -> None:
        while not stopped.is_set():
            app.get("/stats")

    loading = threading.Thread(target=load)
    loading.start()
    try:
        stacks = profile_that_shows_load(app, "/debug/profile?rate=200&format=raw")
        if stacks.status == 503 and b"may not trace" in stacks.body:
            pytest.skip("py-spy may not trace here: it takes root or kernel.yama.ptrace_scope=0")
        picture = profile_that_shows_load(app, "/debug/pprof/profile?rate=100")
    finally:
        stopped.set()
        loading.join(10)
    assert STATS in text_of(stacks, 200)
    assert all(line.rpartition(" ")[2].isdigit() for line in stacks.body.decode().splitlines())
    assert (picture.status, picture.headers["Content-Type"]) == (200, "image/svg+xml")
    names = [str(group.get("data-name")) for group in ElementTree.fromstring(picture.body).iter()]
    assert any(name.startswith(STATS) for name in names)
    assert app.stop() == 0, app.log_text()


def test_profiles_run_one_at_a_time_are_bounded_and_do_not_block_the_loop(
    app: HttpApp, tools: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    install(
        tools,
        f"open({str(go)!r}).read()\n"
        "words = [*sys.argv[1:]]\n"
        "open(words[words.index('--output') + 1], 'w').write(' '.join(words) + ' 7\\n')",
    )
    replies: list[Reply] = []
    asking = threading.Thread(
        target=lambda: replies.append(app.get("/debug/profile?seconds=5000&rate=5000&format=raw"))
    )
    asking.start()
    writer = os.open(go, os.O_WRONLY)
    busy = text_of(app.get("/debug/profile"), 503)
    assert busy == "a profile is being recorded; only one can be at a time\n"
    assert app.get("/ping").status == 200
    os.close(writer)
    asking.join(10)
    (reply,) = replies
    recorded = text_of(reply, 200)
    assert f"record --pid {app.process.pid} --duration 120 --rate 1000 --format raw --nolineno" in recorded
    assert recorded.endswith(" 7\n")


def test_a_stop_ends_the_profile(app: HttpApp, tools: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    install(tools, f"import os, time\nopen({str(pid)!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(60)")

    def ask() -> None:
        try:
            app.get("/debug/profile?seconds=60")
        except OSError:
            return

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"), "the profiler runs")
    assert app.stop() == 0
    asking.join(10)
    wait_until(lambda: not Path(f"/proc/{int(pid.read_text())}").exists(), "the profiler ends")
