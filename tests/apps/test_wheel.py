"""What is released works: from the source distribution to a wheel, installed away from any checkout, to a daemon."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import pyqd
from tests.support.nsq import Client
from tests.support.server import REPOSITORY, Daemon, Implementation

BUILD_WAIT_S = 500
# What would point an interpreter, or a build, to something else than what is under test.
HIDDEN = ("PYTHONPATH", "PYTHONHOME", "PYQD_DEBUG", "PYQD_SKIP_EXT", "PYQD_BUILD_BENCH")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(BUILD_WAIT_S + 60),
    pytest.mark.skipif(not (REPOSITORY / "MANIFEST.in").exists(), reason="releases are not made from this copy"),
]


def run(*command: object, cwd: Path) -> str:
    """Run a command that has to succeed. Returns: what it printed."""
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name not in HIDDEN},
        capture_output=True,
        text=True,
        timeout=BUILD_WAIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def install(wheel: Path, directory: Path) -> Path:
    """Install a wheel in a new environment, with the dependencies of this one. Returns: its interpreter."""
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        wheel,
        cwd=directory,
    )
    # A path in a .pth file brings the packages that lie there, and not what their own .pth files point to.
    [packages] = directory.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_built_of_the_source_distribution_runs_without_a_checkout(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", f"--outdir={tmp_path}", cwd=REPOSITORY)
    [wheel] = tmp_path.glob("*.whl")
    packed = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    sources = {path.stem for path in (REPOSITORY / "pyx").glob("*.pyx")}
    assert {path.name.split(".")[0] for path in packed if path.suffix == ".so"} == sources
    assert {path.parts[0] for path in packed if "dist-info" not in path.parts[0]} == {
        "pyqd",
        "pyqd_spark",
        "pyspark_pyqd",
    }

    python = install(wheel, tmp_path / "environment")
    where = run(python, "-c", "import pyqd.hot.channel; print(pyqd.hot.channel.__file__)", cwd=tmp_path)
    assert where.startswith(f"{tmp_path}/environment/lib/")
    program = python.parent / "pyqd"
    assert run(program, "--version", cwd=tmp_path).startswith(f"pyqd v{pyqd.__version__} ")

    # Isolated (-I): the tests' own PYTHONPATH leads to the checkout.
    daemon = Daemon(Implementation("the installed pyqd", (str(python), "-I", str(program))), tmp_path)
    try:
        daemon.start()
        assert daemon.http("GET", "/ping").body == b"OK"
        assert daemon.http("POST", "/pub", b"hello", topic="t").body == b"OK"
        with Client(daemon.tcp_address) as client:
            client.sub("t", "c", rdy_count=1)
            [message] = client.read_messages(1)
            assert message.body == b"hello"
            client.fin(message)
            daemon.wait_for_channel("t", "c", depth=0, in_flight_count=0)
        daemon.stop()
    finally:
        daemon.kill()
