"""Command that checks brokers, lookup daemons and this machine, and says how to fix what it finds."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from pyqd.client.errors import ClientError
from pyqd.primitives.machine import MAPPING_COUNT_DEFAULT, mapping_max
from pyqd.tools.ctl import checks
from pyqd.tools.ctl.checks import FAILURE, DoctorFinding, limit_finding
from pyqd.tools.ctl.cluster import ask
from pyqd.tools.ctl.contexts import ContextFile
from pyqd.tools.ctl.exits import OK, UNHEALTHY
from pyqd.tools.ctl.facts import LookupFacts, broker_facts, lookup_facts
from pyqd.tools.ctl.frame import command
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.session import CtlSession
from pyqd.tools.ctl.table import STATE, Row, cell, count, new_table

if TYPE_CHECKING:
    from rich.console import RenderableType

MACHINE: Final = "this machine"


@command(
    "GET /ping, GET /info, GET /stats?format=json, GET /drain, GET /metrics, GET /restart and GET /config/data_path at"
    " each broker, the last one if the broker has this machine's host name.",
    "GET /ping and GET /nodes at each lookup daemon.",
)
@click.option("-q", "--quiet", is_flag=True, help="show warnings and failures only")
@click.pass_obj
def doctor(session: CtlSession, quiet: bool) -> int:
    """Check brokers, lookup daemons and this machine, and say how to fix what is found.

    The checks are: answer, health, version, clock, limits of open files, memory and mappings, free space, type of the
    file system, damage, registration with lookup daemons. Clocks are compared to the second. The file system can be
    checked on the broker's own machine only.
    """
    lookups = [answer.value for answer in ask(session.cluster.lookup_daemons(), lookup_facts).answers]
    brokers: list[AskedBroker] = []
    found: list[DoctorFinding] = []
    if not lookups or any(facts.error is None for facts in lookups):
        brokers, found = find_brokers(session, lookups)
    facts = [answer.value for answer in ask(brokers, broker_facts).answers]
    found += [finding for each in lookups for finding in checks.lookup_findings(each)]
    found += [finding for each in facts for finding in checks.broker_findings(each, facts, lookups)]
    found += machine_findings(session.context_file)
    shown = [each for each in found if not quiet or each.state in (checks.WARNING, FAILURE)]
    states = Counter(each.state for each in found)
    summary = {"failures": states[FAILURE], "warnings": states[checks.WARNING]}
    rows = [each._asdict() for each in shown]
    session.output.show({"checks": rows, **summary}, lambda: findings_table(rows, summary))
    return UNHEALTHY if states[FAILURE] else OK


def find_brokers(session: CtlSession, lookups: list[LookupFacts]) -> tuple[list[AskedBroker], list[DoctorFinding]]:
    """Return the brokers, and a finding for each that did not tell its HTTPS port. Raises: ClientError."""
    brokers: list[AskedBroker] = []
    try:
        brokers = session.brokers(may_be_none=True)
    except ClientError:
        if not session.cluster.failures:
            raise
    failures = [*session.failures, *session.cluster.failures]
    session.failures.clear()
    # Each lookup daemon without an answer has a finding of its own.
    checked = {facts.address for facts in lookups}
    return brokers, [
        DoctorFinding(failure.address, "answer", FAILURE, str(failure.error), checks.NO_ANSWER)
        for failure in failures
        if failure.address not in checked
    ]


def machine_findings(file: ContextFile) -> list[DoctorFinding]:
    """Return the findings for this machine and this shell: those that a broker started here would have."""
    hard, mappings = resource.getrlimit(resource.RLIMIT_NOFILE)[1], mapping_max()
    found = [
        limit_finding(
            "descriptors",
            hard < checks.DESCRIPTORS_MIN,
            f"a broker started here may have {count(hard)} open files",
            "raise the hard limit: `ulimit -Hn`, /etc/security/limits.conf, or LimitNOFILE= of systemd",
        )._replace(node=MACHINE),
        limit_finding(
            "mappings",
            mappings < MAPPING_COUNT_DEFAULT,
            f"vm.max_map_count is {count(mappings)}",
            checks.LIMITS["mappings"],
        )._replace(node=MACHINE),
    ]
    try:
        file.read()
    except ClientError as error:
        found.append(DoctorFinding(MACHINE, "contexts", FAILURE, str(error), f"correct or remove {file.path}"))
    else:
        if file.readable_by_others():
            text = f"other users can read the tokens in {file.path}"
            found.append(DoctorFinding(MACHINE, "contexts", checks.WARNING, text, f"chmod 600 {file.path}"))
    return found


def findings_table(rows: Sequence[Row], summary: Row) -> RenderableType:
    """Return the table of doctor's findings, each with its fix on a line of its own."""
    from rich.console import Group

    made = new_table()
    for title in ("Node", "Check", "State"):
        made.add_column(title, no_wrap=True)
    made.add_column("Finding", overflow="fold")
    for row in rows:
        made.add_row(cell(row["node"], "bold"), cell(row["check"]), STATE.cell(row), cell(row["finding"]))
        if row["fix"] is not None:
            made.add_row("", "", "", cell(f"→ {row['fix']}", "cyan"))
    counts = ", ".join(f"{number} {name if number != 1 else name[:-1]}" for name, number in summary.items())
    return Group(made, cell(counts))
