"""Facts about a broker for `pyqctl doctor`: from its HTTP API, and from /proc if it runs on this machine.

Sources: docs/http.md; docs/metrics.md, "Daemon metrics"; proc(5).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyqd.client.errors import ClientError
from pyqd.client.http import Reply
from pyqd.primitives.nsq_compat import PYQD_VERSION
from pyqd.tools.ctl.cluster import nodes_of
from pyqd.tools.ctl.counters import read_stats
from pyqd.tools.ctl.exits import UnsupportedError
from pyqd.tools.ctl.nodes import AskedBroker, AskedLookupDaemon, AskedNode

# Samples of topics and channels, of which a scrape may have 100,000, are left out.
SAMPLE: Final = re.compile(r"((?!pyqd_topic_|pyqd_channel_)[a-z_]+)(?:\{([^}]*)\})? (\S+)")
LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
# Escapes of a space and its like in /proc/PID/mountinfo.
OCTAL: Final = re.compile(r"\\([0-7]{3})")


class Offset(NamedTuple):
    """Bounds of a clock's lead over this machine's clock, in seconds; negative if it is behind."""

    low_s: float
    high_s: float

    def sure_s(self) -> float:
        """Return the least lead or lag that is certain, with its sign; 0 if there may be none."""
        return self.low_s if self.low_s > 0 else min(self.high_s, 0.0)


class FileSystem(NamedTuple):
    """File system of a data directory."""

    path: str
    mount_point: str
    kind: str
    total_bytes: int


@dataclass
class Facts:
    """Facts about one broker; those that are not known are None or empty. error: why it did not answer at all."""

    address: str
    error: ClientError | None = None
    answer_s: float = 0.0
    offset: Offset | None = None
    health: str = ""
    is_pyqd: bool = False
    is_draining: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    topics: frozenset[str] = frozenset()
    # By name, or by name and value of the label for metrics with one label.
    metrics: dict[str, float] = field(default_factory=dict)
    file_system: FileSystem | None = None
    # Failed questions, each with its reason.
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The broker's own version; empty for an nsqd."""
        return str(self.info.get(PYQD_VERSION, ""))


@dataclass
class LookupFacts:
    """Facts about one lookup daemon. nodes: entries of GET /nodes."""

    address: str
    error: ClientError | None = None
    offset: Offset | None = None
    nodes: Sequence[dict[str, Any]] = ()


def broker_facts(broker: AskedBroker) -> Facts:
    facts = Facts(broker.address)
    try:
        reply, facts.answer_s, facts.offset = timed_ping(broker)
        facts.health = reply.body.decode(errors="replace").strip()
        facts.info = broker.get("/info")
        read = read_stats(broker)
        facts.stats = dict(read.head)
        facts.topics = frozenset(topic["topic_name"] for topic in read.topics)
        facts.is_draining = bool(broker.get("/drain")["draining"])
        facts.is_pyqd = True
    except UnsupportedError:
        return facts
    except ClientError as error:
        facts.error = error
        return facts
    with noted(facts, "metrics"):
        facts.metrics = parse_metrics(broker.send("GET", "/metrics", {}).body.decode())
    with noted(facts, "file system"):
        facts.file_system = local_file_system(broker, facts)
    return facts


def lookup_facts(daemon: AskedLookupDaemon) -> LookupFacts:
    facts = LookupFacts(daemon.address)
    try:
        _, _, facts.offset = timed_ping(daemon)
        facts.nodes = nodes_of(daemon)
    except ClientError as error:
        facts.error = error
    return facts


@contextlib.contextmanager
def noted(facts: Facts, subject: str) -> Any:
    """Run a block; note the error of a call that the broker refuses."""
    try:
        yield
    except ClientError as error:
        facts.refused[subject] = str(error)


def timed_ping(node: AskedNode) -> tuple[Reply, float, Offset | None]:
    """Return the answer to GET /ping, the time it took, and the offset of the clock. Raises: ClientError."""
    before_s, began_s = time.time(), time.monotonic()
    reply = node.request("GET", "/ping", retry=False)
    took_s = time.monotonic() - began_s
    return reply, took_s, offset_of(reply.headers.get("date"), before_s, before_s + took_s)


def offset_of(date: str | None, before_s: float, after_s: float) -> Offset | None:
    """Return the offset of a clock by the date that it gave between two times of this clock; None without a date.

    A date has whole seconds: the time was within the second that it names.
    """
    try:
        named_s = parsedate_to_datetime(date or "").timestamp()
    except (TypeError, ValueError):
        return None
    return Offset(named_s - after_s, named_s + 1 - before_s)


def parse_metrics(text: str) -> dict[str, float]:
    """Return the metrics of the daemon. A metric with a label has its value behind a colon."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = SAMPLE.fullmatch(line)
        if match is None:
            continue
        labels = dict(LABEL.findall(match[2] or ""))
        if len(labels) <= 1:
            found[":".join((match[1], *labels.values()))] = float(match[3])
    return found


def local_file_system(broker: AskedBroker, facts: Facts) -> FileSystem | None:
    """Return the file system with the data of a broker; None if the broker runs on another machine.

    Raises: ClientError if the broker does not tell its data path.
    """
    found = local_data_path(broker, facts.info)
    if found is None:
        return None
    process, path = found
    with contextlib.suppress(OSError, ValueError):
        status = os.statvfs(f"{process}/root{path}")
        mount_point, kind = mount_of(path, (process / "mountinfo").read_text())
        return FileSystem(path, mount_point, kind, status.f_frsize * status.f_blocks)
    return None


def local_data_path(broker: AskedBroker, info: Mapping[str, Any]) -> tuple[Path, str] | None:
    """Return the directory in /proc of a broker's process, and its absolute data path as that process sees it.

    info: answer of GET /info. None if the broker runs on another machine. Raises: ClientError if the broker does not
    tell its data path.
    """
    if info.get("hostname") != socket.gethostname():
        return None
    process = Path(f"/proc/{broker.get('/restart').get('pid')}")
    path = broker.send("GET", "/config/data_path", {}).body.decode()
    with contextlib.suppress(OSError):
        # Another container may have the same host name, and a process with this id. Its files are seen through /proc.
        if b"pyqd" in (process / "cmdline").read_bytes():
            return process, os.path.normpath(os.path.join(os.readlink(process / "cwd"), path or "."))
    return None


def mount_of(path: str, mountinfo: str) -> tuple[str, str]:
    """Return mount point and type of the file system that a path is on. Raises: ValueError."""
    best: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        words, _, rest = line.partition(" - ")
        mount_point = OCTAL.sub(lambda match: chr(int(match[1], 8)), words.split()[4])
        inside = path == mount_point or path.startswith(mount_point.rstrip("/") + "/")
        # Of two mounts at one place the later one is seen.
        if inside and (best is None or len(mount_point) >= len(best[0])):
            best = (mount_point, rest.split()[0])
    if best is None:
        raise ValueError(f"no mount point for {path}")
    return best
