"""Programs without the packages that only some flags and pages need: each error names the extra, and the rest works."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pyqd.client import Consumer, Producer
from pyqd.debug.flamegraph import draw
from pyqd.debug.profiler import ProfileError
from tests.support.certificates import Certificates
from tests.support.server import Daemon, Implementation, running

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

WAIT_S = 60.0
# Runs a module as a program in an interpreter that has all packages but one.
WITHOUT = """
import runpy, sys
name, *sys.argv[:] = sys.argv[1:]
sys.modules[name] = None
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def without(package: str, module: str) -> tuple[str, ...]:
    return (sys.executable, "-c", WITHOUT, package, module)


def last_line(package: str, module: str, *arguments: str) -> str:
    command = [*without(package, module), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_a_broker_with_a_certificate_names_the_extra_of_tls(certificates: Certificates, tmp_path: Path) -> None:
    flags = [flag.replace("-", "--", 1) for flag in certificates.server_flags()]
    said = last_line("OpenSSL", "pyqd.apps.daemon", f"--data-path={tmp_path}", *flags)
    assert said.endswith("TLS needs the package pyOpenSSL: pip install 'pyqd[tls]'")


def test_a_broker_with_an_auth_server_names_the_extra_of_its_patterns(tmp_path: Path) -> None:
    said = last_line("re2", "pyqd.apps.daemon", f"--data-path={tmp_path}", "--auth-http-address=127.0.0.1:1")
    assert said.endswith("--auth-http-address needs the package google-re2: pip install 'pyqd[re2]'")


def test_a_tool_with_a_pattern_names_the_extra_of_patterns(tmp_path: Path) -> None:
    arguments = ("--topic-pattern=a", "--lookupd-http-address=127.0.0.1:1", f"--output-dir={tmp_path}")
    said = last_line("re2", "pyqd.tools.pyq_to_file", *arguments)
    assert said.endswith("--topic-pattern needs a package: pip install 'pyqd[re2]'")


def test_a_new_context_names_the_extra_of_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    said = last_line("tomlkit", "pyqd.tools.pyqctl", "context", "add", "here", "-a", "127.0.0.1:1")
    assert said.endswith("contexts are changed with the package tomlkit: pip install 'pyqd[contexts]'")


def test_a_picture_of_a_profile_names_the_extra_and_the_format_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ProfileError, match=r"pip install 'pyqd\[profile\]'; format=raw needs none") as caught:
        draw("")
    assert caught.value.status == 501


@pytest.mark.parametrize("level", [1, 6, 9])
def test_deflate_works_without_the_faster_library(level: int, tmp_path: Path) -> None:
    bodies: Sequence[bytes] = [b"small", bytes(range(256)) * 2000, b"x" * 900_000]
    options: dict[str, Any] = {"compression": "deflate", "deflate_level": level}
    broker = Implementation("pyqd", without("isal", "pyqd.apps.daemon"))
    with running(Daemon(broker, tmp_path)) as daemon:
        address = f"127.0.0.1:{daemon.tcp_port}"
        with Producer(address, **options) as producer:
            producer.publish_many("t", bodies)
        with Consumer("t", "c", nsqd=address, max_in_flight=3, **options) as consumer:
            got = [consumer.fetch(1, WAIT_S)[0].body for _ in bodies]
    assert sorted(got) == sorted(bodies)
