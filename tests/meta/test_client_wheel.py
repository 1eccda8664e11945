"""The wheel of pyqd-client: pure Python without dependencies, for systems without a compiler, fork and unix sockets."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyqd.testing import BrokerProcess
from tests.meta.repository import ROOT

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

PROGRAM = ROOT / "tests" / "support" / "bare_client.py"
WAIT_S = 120.0
# Of the standard library and of the client, for a program that publishes and consumes.
MODULES_MAX = 165
# Each takes a tenth of the present time of the import, or more, and few programs need it.
SPARED = {"asyncio", "email", "http.client", "subprocess", "pathlib", "urllib.request", "multiprocessing", "tempfile"}


def run(*command: object) -> str:
    """Run a command away from the checkout, whose packages pip would take for installed ones."""
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-index", "--no-build-isolation", "-w", directory, ROOT / "scripts/build/client")
    [made] = directory.iterdir()
    return made


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with this wheel and nothing else. Without an index, pip would fail if the wheel had dependencies."""
    directory = tmp_path_factory.mktemp("bare")
    run(sys.executable, "-m", "venv", "--without-pip", directory)
    python = directory / "bin" / "python"
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--no-index", wheel)
    return python


def test_the_wheel_is_for_every_system_and_has_the_licence(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {Path(name).suffix for name in names if "dist-info" not in name} == {".py", ".pxd", ".typed", ".json"}
    assert [name for name in names if name.endswith("licenses/LICENSE")] != []
    assert {"pyqd/client/aio.py", "pyqd/client/kombu.py", "pyqd/client/dramatiq.py"} <= set(names)


def test_pytest_and_kombu_find_what_the_wheel_has_for_them(bare_python: Path) -> None:
    program = """
from importlib.metadata import entry_points
for group in "pytest11", "kombu.serializers":
    print(*(entry.value for entry in entry_points(group=group)))
"""
    found = run(bare_python, "-I", "-c", program).splitlines()
    assert found == ["pyqd.testing.plugin", "pyqd.client.ecosystem.kombu_alias:SERIALIZER"]


def test_the_wheel_alone_publishes_and_consumes_by_both_faces_on_a_system_like_windows(
    bare_python: Path, pyqd_broker: BrokerProcess
) -> None:
    said = json.loads(run(bare_python, "-I", PROGRAM, pyqd_broker.tcp_address))
    assert said == {
        "installed": [],
        "blocking": ["one", "two", "three"],
        "awaited": ["one", "two", "three"],
        "compiled": [],
        "unix socket": "address /run/pyqd.sock: Python has no unix sockets on this system; write host:port",
    }


def test_importing_the_client_loads_few_modules_and_none_that_few_programs_need(bare_python: Path) -> None:
    loaded = set(run(bare_python, "-I", "-c", "import sys, pyqd.client; print(*sys.modules)").split())
    assert loaded & SPARED == set()
    assert len(loaded) <= MODULES_MAX


def test_the_broker_in_memory_works_and_the_real_one_names_the_package_that_has_it(bare_python: Path) -> None:
    program = """
import tempfile
from pyqd.testing import BrokerError, BrokerProcess, MemoryBroker
broker = MemoryBroker()
with broker.producer() as producer:
    producer.publish("orders", b"1")
print(broker.published("orders"))
try:
    BrokerProcess(tempfile.mkdtemp())
except BrokerError as error:
    print(error)
"""
    said = run(bare_python, "-I", "-c", program).splitlines()
    assert said[0] == "[b'1']"
    assert "`pip install pyqd`" in said[1]
