"""pyqctl doctor: against real brokers and lookup daemons, and its checks on facts that these cannot show at will."""

from __future__ import annotations

import dataclasses
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyqd import __version__
from pyqd.tools.ctl import checks
from pyqd.tools.ctl.checks import DoctorFinding
from pyqd.tools.ctl.facts import Facts, FileSystem, LookupFacts, Offset, mount_of, offset_of, parse_metrics
from tests.lookupd.conftest import LookupDaemon
from tests.support.server import Daemon, free_port, pyqd, running, wait_until
from tests.tools.ctl.conftest import Ctl, Ran, address_of

TOKEN = "a-token-of-the-tests-0001"


def found(ran: Ran) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the findings by broker and check."""
    return {(row["node"], row["check"]): row for row in json.loads(ran.out)["checks"]}


def test_a_healthy_broker_has_no_failure(second_broker: Daemon, bare: Ctl) -> None:
    address = address_of(second_broker)
    ran = bare("doctor", "-a", address)
    assert ran.code == 0
    rows = found(ran)
    for check in ("answer", "health", "version", "clock", "mappings", "disk", "damage"):
        assert rows[(address, check)]["state"] == "ok", rows
    assert str(second_broker.data_path) in rows[(address, "file system")]["finding"]
    assert rows[(address, "registration")]["state"] == "skipped"
    assert ("this machine", "descriptors") in rows


def test_a_broker_that_does_not_answer_is_a_failure(bare: Ctl, broker: Daemon) -> None:
    absent = f"127.0.0.1:{free_port()}"
    ran = bare("doctor", "--quiet", "-a", absent, "-a", address_of(broker))
    assert ran.code == 7
    row = found(ran)[(absent, "answer")]
    assert row["state"] == "failure"
    assert "--broadcast-address" in row["fix"]


def test_a_low_limit_of_open_files_is_found(daemon: Daemon, tmp_path: Path) -> None:
    ctl = Ctl(tmp_path, address_of(daemon))
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (1000, 1000))
    row = found(ctl("doctor"))[(address_of(daemon), "descriptors")]
    assert row["state"] == "warning"
    assert "open files; the limit is 1,000, less than the 65,536" in row["finding"]
    assert "LimitNOFILE=" in row["fix"]
    assert "LimitNOFILE=" in ctl("doctor", "--table").out


@pytest.fixture(scope="module")
def registered(lookup: LookupDaemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A broker with two lookup daemons, of which one does not run."""
    flags = (
        f"-lookupd-tcp-address=127.0.0.1:{lookup.ports['TCP']}",
        "-lookupd-tcp-address=127.0.0.1:1",
        "-broadcast-address=127.0.0.1",
    )
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("registered"), flags)) as started:
        wait_until(lambda: lookup.ask("GET", "/nodes")[1]["producers"] != [], "the broker is registered")
        yield started


@pytest.mark.slow
def test_registrations_are_checked_from_both_sides(lookup: LookupDaemon, registered: Daemon, tmp_path: Path) -> None:
    registered.http("POST", "/topic/create", topic="orders")
    wait_until(lambda: "orders" in lookup.ask("GET", "/topics")[1]["topics"], "the topic is registered")
    daemon = f"127.0.0.1:{lookup.ports['HTTP']}"
    ran = Ctl(tmp_path, daemon, "PYQD_LOOKUPD_HTTP_ADDRESS")("doctor")
    assert ran.code == 7
    rows = [row for row in json.loads(ran.out)["checks"] if row["check"] == "registration"]
    own, broken, named = rows
    assert (own["state"], own["finding"]) == ("ok", f"with 127.0.0.1:{lookup.ports['TCP']}")
    assert (broken["state"], broken["finding"].partition(": ")[0]) == ("failure", "not with 127.0.0.1:1")
    assert (named["state"], named["finding"]) == ("ok", f"{daemon} names the broker for all of its topics")
    # The topic is hidden for 45 s.
    lookup.ask("POST", f"/topic/tombstone?topic=orders&node=127.0.0.1:{registered.http_port}")
    ran = Ctl(tmp_path, daemon, "PYQD_LOOKUPD_HTTP_ADDRESS")("doctor", "-q")
    assert any("tombstone" in (row["fix"] or "") for row in json.loads(ran.out)["checks"])


def test_a_lookup_daemon_that_does_not_answer_is_a_failure(lookup: LookupDaemon, registered: Daemon, bare: Ctl) -> None:
    absent = f"127.0.0.1:{free_port()}"
    ran = bare("doctor", "-l", absent, "-l", f"127.0.0.1:{lookup.ports['HTTP']}")
    assert ran.code == 7
    rows = found(ran)
    assert rows[(absent, "answer")]["state"] == "failure"
    assert rows[(address_of(registered), "answer")]["state"] == "ok"
    ran = bare("doctor", "-l", absent)
    assert ran.code == 7
    assert ("this machine", "mappings") in found(ran)


@pytest.mark.slow
def test_a_missing_token_is_told_apart_from_a_broker_that_is_down(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN} status\n")
    tokens.chmod(0o600)
    with running(Daemon(pyqd(), tmp_path, (f"-http-auth-token-file={tokens}",))) as daemon:
        ctl = Ctl(tmp_path, address_of(daemon))
        ran = ctl("doctor")
        assert ran.code == 7
        assert "--token-file" in found(ran)[(address_of(daemon), "answer")]["fix"]
        ran = ctl("doctor", PYQD_TOKEN=TOKEN)
        assert ran.code == 0
        # The data path is for administrators.
        assert "FORBIDDEN" in found(ran)[(address_of(daemon), "file system")]["finding"]


def test_nsqd_is_checked_as_far_as_it_tells(go_ctl: Ctl, go_broker: Daemon) -> None:
    ran = go_ctl("doctor")
    assert ran.code == 0
    rows = found(ran)
    assert rows[(address_of(go_broker), "version")]["finding"] == "nsqd 1.3.0"
    assert rows[(address_of(go_broker), "limits")]["state"] == "skipped"


def test_a_damaged_context_file_is_a_failure(ctl: Ctl) -> None:
    path = ctl.home / ".config" / "pyqd" / "contexts.toml"
    path.parent.mkdir(parents=True)
    path.write_text("x =")
    ran = ctl("doctor")
    assert ran.code == 7
    assert found(ran)[("this machine", "contexts")]["fix"] == f"correct or remove {path}"


METRICS = {
    "process_max_fds": 1e6,
    "process_open_fds": 20.0,
    "pyqd_files": 5.0,
    "pyqd_mapped_files_max": 30_000.0,
    "pyqd_machine_limit_reached:memory": 0.0,
    "pyqd_disk_free_bytes": 50e9,
    "pyqd_disk_free_min_bytes": 64e6,
    "pyqd_topics_refusing": 0.0,
    "pyqd_sync_failures_total": 0.0,
    "pyqd_write_failures_total": 0.0,
}
SOUND = Facts(
    "a:4151",
    offset=Offset(-0.9, 0.9),
    health="OK",
    is_pyqd=True,
    info={"version": "1.3.0", "pyqd_version": __version__, "broadcast_address": "a", "tcp_port": 4150},
    topics=frozenset({"orders"}),
    metrics=METRICS,
    file_system=FileSystem("/data", "/data", "ext4", 100 << 30),
)


def bad(facts: Facts, *lookups: LookupFacts, others: tuple[Facts, ...] = ()) -> list[DoctorFinding]:
    every = checks.broker_findings(facts, (facts, *others), lookups)
    return [each for each in every if each.state in (checks.WARNING, checks.FAILURE)]


def with_metrics(**changed: float) -> Facts:
    named = {name.replace("__", ":"): value for name, value in changed.items()}
    return dataclasses.replace(SOUND, metrics={**METRICS, **named})


def of_version(version: str) -> Facts:
    return dataclasses.replace(SOUND, info={**SOUND.info, "pyqd_version": version})


def with_file_system(kind: str) -> Facts:
    return dataclasses.replace(SOUND, file_system=FileSystem("/d", "/", kind, 1))


def test_sound_facts_have_no_findings() -> None:
    assert bad(SOUND) == []


@pytest.mark.parametrize(
    ("facts", "check", "state", "text"),
    [
        (dataclasses.replace(SOUND, health="NOK - disk full"), "health", "failure", "NOK - disk full"),
        (dataclasses.replace(SOUND, is_draining=True), "health", "warning", "draining"),
        (dataclasses.replace(SOUND, offset=Offset(4.2, 5.2)), "clock", "warning", "4 s or more ahead of"),
        (dataclasses.replace(SOUND, offset=Offset(-4001.0, -4000.0)), "clock", "failure", "4000 s or more behind"),
        (of_version("0.0.1"), "version", "warning", f"pyqctl has {__version__}"),
        (with_metrics(process_max_fds=20_000), "descriptors", "warning", "20 open files; the limit is 20,000"),
        (with_metrics(process_open_fds=6e5), "descriptors", "warning", "600,000 open files; the limit is 1,000,000"),
        (with_metrics(pyqd_machine_limit_reached__memory=1), "memory", "failure", "reserve"),
        (with_metrics(pyqd_machine_limit_reached__descriptors=1), "descriptors", "failure", "reserve"),
        (with_metrics(pyqd_files=40_000), "mappings", "warning", "30,000 can be mapped"),
        (with_metrics(pyqd_disk_free_bytes=60e6), "disk", "failure", "below 61.0 MiB publishing is refused"),
        (with_metrics(pyqd_disk_free_bytes=600e6), "disk", "warning", "572 MiB free"),
        (with_metrics(pyqd_topics_refusing=2), "quota", "failure", "2 topics refuse"),
        (with_metrics(pyqd_sync_failures_total=3), "disk writes", "warning", "3 syncs failed"),
        (with_metrics(pyqd_write_failures_total=3), "disk writes", "warning", "3 messages could not be stored"),
        (with_file_system("tmpfs"), "file system", "warning", "restart of the machine"),
        (with_file_system("overlay"), "file system", "warning", "lost with the container"),
        (with_file_system("nfs4"), "file system", "warning", "network file system"),
        (
            dataclasses.replace(SOUND, stats={"damage": {"count": 1, "records_lost": 2, "bytes": 3}}),
            "damage",
            "warning",
            "1 damaged places found on disk, 2 messages lost",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_trouble_is_found_and_has_a_fix(facts: Facts, check: str, state: str, text: str) -> None:
    (only,) = bad(facts)
    assert (only.node, only.check, only.state) == ("a:4151", check, state)
    assert text in only.finding
    assert only.fix


def test_brokers_of_different_versions_are_found() -> None:
    other = dataclasses.replace(of_version("0.0.1"), address="b:4151")
    (only,) = bad(SOUND, others=(other,))
    assert (only.check, only.state) == ("version", "warning")
    assert f"the brokers have 0.0.1, {__version__}" in only.finding


ENTRY = {"broadcast_address": "a", "http_port": 4151, "tcp_port": 4150, "topics": ["orders"], "tombstones": [False]}


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([ENTRY], None),
        ([{**ENTRY, "http_port": 4152}], None),
        ([{**ENTRY, "http_port": 1, "tcp_port": 2}], "does not name the broker"),
        ([], "l:4161 does not name the broker"),
        ([{**ENTRY, "topics": [], "tombstones": []}], "for 1 topics, orders among them"),
        ([{**ENTRY, "tombstones": [True]}], "hides the broker for 1 topics"),
    ],
)
def test_a_lookup_daemon_must_name_the_broker_and_its_topics(nodes: list[dict[str, Any]], text: str | None) -> None:
    findings = bad(SOUND, LookupFacts("l:4161", nodes=nodes))
    assert [each.check for each in findings] == ([] if text is None else ["registration"])
    if text is not None:
        assert text in findings[0].finding
        assert findings[0].fix


def test_an_offset_has_the_bounds_that_a_whole_second_leaves() -> None:
    date = "Mon, 23 Nov 2026 22:59:18 GMT"
    named_s = 1795474758.0
    assert offset_of(date, named_s + 0.2, named_s + 0.3) == pytest.approx(Offset(-0.3, 0.8))
    ahead = offset_of(date, named_s - 5, named_s - 4)
    assert ahead is not None
    assert ahead.sure_s() == pytest.approx(4)
    behind = offset_of(date, named_s + 5, named_s + 6)
    assert behind is not None
    assert behind.sure_s() == pytest.approx(-4)
    assert offset_of(None, 0, 1) is None
    assert offset_of("soon", 0, 1) is None


def test_metrics_of_topics_are_left_out() -> None:
    text = (
        '# HELP pyqd_files Files\npyqd_files 5.0\npyqd_topic_depth{topic="a"} 1\n'
        'pyqd_machine_limit_reached{resource="memory"} 1.0\npyqd_build_info{nsq_version="1.3.0",version="9.9"} 1.0\n'
        'pyqd_sync_duration_seconds_bucket{le="+Inf"} 0.0\n'
    )
    metrics = parse_metrics(text)
    assert (metrics["pyqd_files"], metrics["pyqd_machine_limit_reached:memory"]) == (5.0, 1.0)
    assert not any("topic" in name for name in metrics)


def test_the_longest_mount_point_holds_a_path() -> None:
    mountinfo = (
        "27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        "30 27 0:30 / /var/lib rw - xfs /dev/sdb rw\n"
        "31 27 0:31 / /var/my\\040data rw - nfs4 server:/x rw\n"
        "32 27 0:32 / /var/lib rw - tmpfs tmpfs rw\n"
    )
    assert mount_of("/var/lib/pyqd", mountinfo) == ("/var/lib", "tmpfs")
    assert mount_of("/var/library", mountinfo) == ("/", "ext4")
    assert mount_of("/var/my data/d", mountinfo) == ("/var/my data", "nfs4")
    assert mount_of("/", mountinfo) == ("/", "ext4")
