"""Checks of `pyqctl doctor`: findings from facts, each with the way to fix it.

Sources: docs/configuration.md, "Limits of the machine"; docs/space.md; docs/cluster.md; docs/metrics.md, "Health".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from pyqd import __version__
from pyqd.client.errors import AuthenticationError
from pyqd.primitives.quantities import format_size
from pyqd.tools.ctl.cluster import http_address_of
from pyqd.tools.ctl.facts import Facts, LookupFacts
from pyqd.tools.ctl.table import count

OK: Final = "ok"
WARNING: Final = "warning"
FAILURE: Final = "failure"
SKIPPED: Final = "skipped"

DESCRIPTORS_MIN: Final = 65_536
# Half of them open: the next burst of clients may be refused.
DESCRIPTORS_SHARE: Final = 0.5
CLOCK_WARNING_S: Final = 1.0
CLOCK_FAILURE_S: Final = 60.0
DISK_FLOORS: Final = 10
DISK_BYTES_MIN: Final = 1 << 30
MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
LAYERED_FILE_SYSTEMS: Final = frozenset({"overlay", "aufs"})
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "beegfs", "fuse.sshfs"}
)
LIMITS: Final = {
    "descriptors": "raise LimitNOFILE= of the systemd unit, or `ulimit -n`, and restart the broker",
    "memory": "give the machine or the control group more memory (memory.max), or lower --max-buffer-bytes",
    "mappings": "raise vm.max_map_count: sysctl -w vm.max_map_count=1048576",
}

FAILURES: Final = {
    "pyqd_sync_failures_total": ("syncs failed", "check the disk and its driver: `dmesg`; replace a failing disk"),
    "pyqd_write_failures_total": (
        "messages could not be stored",
        "the log of the broker has the reason: no space, a quota, or a failing disk",
    ),
}
NO_ANSWER: Final = (
    "is it running, and is this its HTTP address? If a lookup daemon names it, --broadcast-address and"
    " --broadcast-http-port must lead there from this machine"
)
NO_LOGIN: Final = "give a token with the right `status`: --token-file, PYQD_TOKEN, or `pyqctl context add`"


class DoctorFinding(NamedTuple):
    """Result of one check. node: address of a daemon, or "this machine". fix: advice to the operator."""

    node: str
    check: str
    state: str
    finding: str
    fix: str | None = None


# For a node that is named later.
finding: Final = partial(DoctorFinding, "")


def limit_finding(check: str, is_scarce: bool, text: str, fix: str) -> DoctorFinding:
    """Return the finding about a limit, with a fix if the limit is scarce."""
    return finding(check, WARNING, text, fix) if is_scarce else finding(check, OK, text)


Made = Iterator[DoctorFinding]


def answers(facts: Facts) -> Made:
    if facts.error is not None:
        fix = NO_LOGIN if isinstance(facts.error, AuthenticationError) else NO_ANSWER
        yield finding("answer", FAILURE, str(facts.error), fix)
        return
    yield finding("answer", OK, f"in {facts.answer_s * 1000:.0f} ms")
    if facts.is_draining:
        yield finding("health", WARNING, "the broker is draining", "start it again when it has stopped")
    elif facts.health != "OK":
        yield finding(
            "health", FAILURE, facts.health, "see the reason, the log of the broker, and docs/metrics.md: Health"
        )
    else:
        yield finding("health", OK, facts.health)


def versions(facts: Facts, others: Sequence[Facts]) -> Made:
    nsq_version = facts.info.get("version")
    if not facts.is_pyqd:
        yield finding("version", OK, f"nsqd {nsq_version}")
        return
    known = sorted({other.version for other in others if other.is_pyqd})
    text = f"pyqd {facts.version} (NSQ {nsq_version})"
    if len(known) > 1:
        fix = "upgrade one broker after the other, until all have the same: docs/cluster.md: Upgrade a cluster"
        yield finding("version", WARNING, f"{text}; the brokers have {', '.join(known)}", fix)
    elif facts.version != __version__:
        yield finding("version", WARNING, f"{text}; pyqctl has {__version__}", "install the same version of pyqctl")
    else:
        yield finding("version", OK, text)


def clock(facts: Facts | LookupFacts) -> Made:
    if facts.offset is None:
        yield finding("clock", SKIPPED, "the answer has no date")
        return
    sure_s = facts.offset.sure_s()
    if abs(sure_s) <= CLOCK_WARNING_S:
        yield finding("clock", OK, "as on this machine, to a second")
        return
    text = f"{abs(sure_s):.0f} s or more {'ahead of' if sure_s > 0 else 'behind'} this machine"
    state = FAILURE if abs(sure_s) > CLOCK_FAILURE_S else WARNING
    fix = "synchronise the clocks on both machines: `timedatectl set-ntp true`, or chrony. Due times follow the clock"
    yield finding("clock", state, text, fix)


def limits(facts: Facts) -> Made:
    metrics = facts.metrics
    for resource, fix in LIMITS.items():
        if metrics.get(f"pyqd_machine_limit_reached:{resource}"):
            yield finding(resource, FAILURE, "only the reserve is left; new topics or connections are refused", fix)
    if "process_max_fds" in metrics and not metrics.get("pyqd_machine_limit_reached:descriptors"):
        limit, used = metrics["process_max_fds"], metrics["process_open_fds"]
        text = f"{count(used)} open files; the limit is {count(limit)}"
        if limit < DESCRIPTORS_MIN:
            text += f", less than the {count(DESCRIPTORS_MIN)} of a busy broker"
        scarce = limit < DESCRIPTORS_MIN or used > DESCRIPTORS_SHARE * limit
        yield limit_finding("descriptors", scarce, text, f"{LIMITS['descriptors']}: each connection needs one")
    if "pyqd_files" in metrics and not metrics.get("pyqd_machine_limit_reached:mappings"):
        files, mapped_max = metrics["pyqd_files"], metrics["pyqd_mapped_files_max"]
        text = f"{count(files)} files of topics and channels, of which {count(mapped_max)} can be mapped at a time"
        fix = f"{LIMITS['mappings']}, or raise --max-mapped-files: idle topics answer faster then"
        yield limit_finding("mappings", files > mapped_max, text, fix)


def disk(facts: Facts) -> Made:
    metrics, place = facts.metrics, facts.file_system
    if "pyqd_disk_free_bytes" in metrics:
        free, floor = metrics["pyqd_disk_free_bytes"], metrics["pyqd_disk_free_min_bytes"]
        text = f"{format_size(free)} free" + ("" if place is None else f" of {format_size(place.total_bytes)}")
        fix = (
            "free space, lower `pyqctl retention`, or delete topics, which loses their messages; `pyqctl topics"
            " --sort=depth` shows queues"
        )
        if free < max(DISK_FLOORS * floor, DISK_BYTES_MIN):
            state = FAILURE if free < floor else WARNING
            yield finding("disk", state, f"{text}; below {format_size(floor)} publishing is refused", fix)
        else:
            yield finding("disk", OK, text)
    if refusing := metrics.get("pyqd_topics_refusing"):
        fix = "consume, or raise the quota: --max-topic-bytes, or POST /topic/quota of the topic"
        yield finding("quota", FAILURE, f"{count(refusing)} topics refuse publishers for lack of space", fix)
    if place is not None:
        yield file_system(place.kind, f"{place.kind} at {place.mount_point}, with {place.path}")
    elif "file system" in facts.refused:
        yield finding("file system", SKIPPED, facts.refused["file system"])
    elif facts.is_pyqd:
        yield finding("file system", SKIPPED, "not to be seen from here: another machine, container or user")


def file_system(kind: str, text: str) -> DoctorFinding:
    fix = "set --data-path to a directory on a local disk"
    if kind in MEMORY_FILE_SYSTEMS:
        return finding("file system", WARNING, f"{text}: a restart of the machine loses all messages", fix)
    if kind in LAYERED_FILE_SYSTEMS:
        text = f"{text}: the messages are lost with the container"
        return finding("file system", WARNING, text, "mount a volume at --data-path")
    if kind in NETWORK_FILE_SYSTEMS:
        return finding("file system", WARNING, f"{text}: a network file system has other guarantees of durability", fix)
    return finding("file system", OK, text)


def damage(facts: Facts) -> Made:
    metrics = facts.metrics
    found = (facts.stats.get("damage") or {}).get("count", 0)
    if found:
        lost = facts.stats["damage"]["records_lost"]
        text = f"{count(found)} damaged places found on disk, {count(lost)} messages lost"
        fix = "check the disk; `pyqd inspect` on a copy of the data directory shows the places"
        yield finding("damage", WARNING, text, fix)
    for name, (words, fix) in FAILURES.items():
        if metrics.get(name):
            yield finding("disk writes", WARNING, f"{count(metrics[name])} {words} since the start", fix)
    if metrics and not found and not any(metrics.get(name) for name in FAILURES):
        yield finding("damage", OK, "no damage and no failed writes since the start")


def registration(facts: Facts, lookups: Sequence[LookupFacts]) -> Made:
    daemons: Sequence[dict[str, Any]] = facts.stats.get("lookup_daemons") or ()
    for daemon in daemons:
        text = f"with {daemon['address']}"
        if daemon["connected"]:
            yield finding("registration", OK, text)
        else:
            cause, _, remedy = str(daemon["last_error"] or "not connected yet").partition("; ")
            fix = remedy or "is the lookup daemon running, and is this its TCP address? --lookupd-tcp-address names it"
            yield finding("registration", FAILURE, f"not {text}: {cause}", fix)
    for lookup in lookups:
        if lookup.error is None:
            yield from registered_at(facts, lookup)
    if not daemons and not lookups and facts.is_pyqd:
        yield finding("registration", SKIPPED, "the broker has no lookup daemon: consumers need its address")


def registered_at(facts: Facts, lookup: LookupFacts) -> Made:
    entry = entry_of(facts, lookup)
    if entry is None:
        fix = "add the lookup daemon's TCP address to the broker's --lookupd-tcp-address"
        yield finding("registration", FAILURE, f"{lookup.address} does not name the broker", fix)
        return
    named = dict(zip(entry.get("topics") or (), entry.get("tombstones") or (), strict=False))
    missing = sorted(facts.topics - named.keys())
    hidden = sorted(topic for topic, is_hidden in named.items() if is_hidden)
    if missing:
        text = f"{lookup.address} does not name the broker for {count(len(missing))} topics, {missing[0]} among them"
        fix = "repeat the check; if it stays so, restart the lookup daemon: brokers then register everything again"
        yield finding("registration", FAILURE, text, fix)
    elif hidden:
        text = f"{lookup.address} hides the broker for {count(len(hidden))} topics, {hidden[0]} among them"
        yield finding("registration", WARNING, text, "somebody has set a tombstone; it ends by itself after 45 s")
    else:
        yield finding("registration", OK, f"{lookup.address} names the broker for all of its topics")


def entry_of(facts: Facts, lookup: LookupFacts) -> dict[str, Any] | None:
    place = (facts.info.get("broadcast_address"), facts.info.get("tcp_port"))
    for entry in lookup.nodes:
        # The address with HTTPS has another port.
        if facts.address == str(http_address_of(entry)) or place == (entry["broadcast_address"], entry.get("tcp_port")):
            return entry
    return None


def broker_findings(facts: Facts, others: Sequence[Facts], lookups: Sequence[LookupFacts]) -> list[DoctorFinding]:
    """Return the findings for one broker. others: the facts about all brokers."""
    made = list(answers(facts))
    if facts.error is None:
        made += [*versions(facts, others), *clock(facts)]
        if facts.is_pyqd:
            made += [*limits(facts), *disk(facts), *damage(facts)]
        else:
            made.append(finding("limits", SKIPPED, "nsqd tells neither limits nor free space"))
        made += registration(facts, lookups)
    return [each._replace(node=facts.address) for each in made]


def lookup_findings(facts: LookupFacts) -> list[DoctorFinding]:
    if facts.error is not None:
        fix = "is it running, and is this its HTTP address, 4161 by default?"
        return [DoctorFinding(facts.address, "answer", FAILURE, str(facts.error), fix)]
    named = DoctorFinding(facts.address, "answer", OK, f"names {count(len(facts.nodes))} brokers")
    return [named, *(each._replace(node=facts.address) for each in clock(facts))]
