"""Tests of pyqd.testing.plugin: a user's tests, run by pytest in a process of its own."""

from __future__ import annotations

import re

import pytest

from tests.testing.conftest import PytestRun

# Each test is a run of pytest with daemons of its own.
pytestmark = pytest.mark.slow

PUBLISH = """
import pytest

def publish(broker, body):
    broker.request("POST", "/pub", body, topic="orders")
"""


def test_each_test_has_a_daemon_of_its_own(run_pytest: PytestRun) -> None:
    done = run_pytest(
        PUBLISH
        + """
@pytest.mark.parametrize("body", [b"one", b"two"])
def test_it(pyqd_broker, body):
    publish(pyqd_broker, body)
    pyqd_broker.restart()
    assert pyqd_broker.published("orders") == [body]
"""
    )
    assert "2 passed" in done.stdout, done.stdout


def test_tests_share_the_daemon_of_the_session_but_no_topics(run_pytest: PytestRun) -> None:
    done = run_pytest(
        PUBLISH
        + """
pids = set()

@pytest.mark.parametrize("body", [b"one", b"two", b"three"])
def test_it(pyqd_broker_session, body):
    assert pyqd_broker_session.stats()["topics"] == []
    publish(pyqd_broker_session, body)
    assert pyqd_broker_session.published("orders") == [body]
    pids.add(pyqd_broker_session.pid)
    assert len(pids) == 1
"""
    )
    assert "3 passed" in done.stdout, done.stdout


def test_a_test_may_kill_the_daemon_of_the_session(run_pytest: PytestRun) -> None:
    done = run_pytest(
        PUBLISH
        + """
@pytest.mark.parametrize("way", ["kill", "stop", "restart"])
def test_it(pyqd_broker_session, way):
    assert pyqd_broker_session.stats()["topics"] == []
    publish(pyqd_broker_session, b"one")
    getattr(pyqd_broker_session, way)()
"""
    )
    assert "3 passed" in done.stdout, done.stdout


def test_flags_come_from_the_setting_and_from_the_mark(run_pytest: PytestRun) -> None:
    done = run_pytest(
        PUBLISH
        + """
def test_setting(pyqd_broker_session):
    with pytest.raises(AssertionError, match="MSG_TOO_BIG"):
        publish(pyqd_broker_session, b"12345")

@pytest.mark.pyqd_flags("--max-msg-size=5")
def test_mark(pyqd_broker):
    publish(pyqd_broker, b"12345")
    with pytest.raises(AssertionError, match="MSG_TOO_BIG"):
        publish(pyqd_broker, b"123456")
""",
        "-o",
        "pyqd_flags=--max-msg-size=4",
    )
    assert "2 passed" in done.stdout, done.stdout


def test_processes_of_xdist_run_daemons_beside_each_other(run_pytest: PytestRun) -> None:
    done = run_pytest(
        PUBLISH
        + """
@pytest.mark.parametrize("number", range(6))
def test_it(pyqd_broker, pyqd_broker_session, number):
    for broker in (pyqd_broker, pyqd_broker_session):
        publish(broker, b"%d" % number)
        assert broker.published("orders") == [b"%d" % number]
""",
        *("-p", "xdist", "-n", "3"),
    )
    assert "6 passed" in done.stdout, done.stdout


def test_a_failed_test_shows_the_log_of_its_daemon(run_pytest: PytestRun) -> None:
    done = run_pytest("def test_it(pyqd_broker):\n    assert pyqd_broker.published('orders') == [b'one']\n")
    assert "1 failed" in done.stdout
    assert re.search(r"log of 127\.0\.0\.1:\d+ -+\n\[pyqd\]", done.stdout), done.stdout


def test_the_plugin_loads_nothing_that_slows_collection(run_pytest: PytestRun) -> None:
    done = run_pytest(
        """
import sys
def test_it():
    loaded = {name for name in sys.modules if name.split(".")[0] in ("pyqd", "gevent", "greenlet")}
    assert loaded == {"pyqd", "pyqd.testing", "pyqd.testing.plugin"}
"""
    )
    assert "1 passed" in done.stdout, done.stdout


def test_the_fixtures_describe_themselves(run_pytest: PytestRun) -> None:
    done = run_pytest("", "--fixtures", "--markers")
    assert "@pytest.mark.pyqd_flags" in done.stdout
    done = run_pytest("", "--fixtures")
    assert re.search(r"pyqd_broker -- .*\n    A daemon of this test's own", done.stdout), done.stdout
    assert "A daemon that all tests of the session share." in done.stdout
