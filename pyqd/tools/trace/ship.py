"""Command that stores the events of brokers."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import click

from pyqd.client.http import HttpClient
from pyqd.tools.ctl.cluster import WITHOUT_TOKEN, TargetCluster
from pyqd.tools.ctl.frame import shared_options
from pyqd.tools.ctl.session import FLAGS_KEY, CtlSession
from pyqd.tools.trace.frame import database_option, size, span

# Longer than the wait for events.
TIMEOUT_S: Final = 30.0
LEFT_OUT: Final = ("as_json", "timeout_ns")

logger = logging.getLogger("pyqd.trace")


class ShipCommand(click.Command):
    """Command with pyqctl's options for brokers: addresses, tokens, certificates and contexts."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += [option for option in shared_options() if option.name not in LEFT_OUT]


@click.command(cls=ShipCommand)
@database_option("--to", help="database that stores the events")
@click.option("--once", is_flag=True, help="end when all events are stored")
@click.option("--keep", type=span, metavar="DURATION", help="remove rows that are older, such as 30d")
@click.option("--keep-bytes", type=size, metavar="SIZE", help="remove the oldest rows beyond this size, such as 20G")
@click.option(
    "--interval",
    type=span,
    default="500ms",
    show_default=True,
    metavar="DURATION",
    help="time between two requests to a broker that has few events",
)
@click.option(
    "--lookupd-interval",
    type=span,
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="time between two questions to the lookup daemons",
)
@click.pass_context
def ship(
    ctx: click.Context,
    url: str,
    once: bool,
    keep: timedelta | None,
    keep_bytes: int | None,
    interval: timedelta,
    lookupd_interval: timedelta,
) -> int:
    """Store the events of brokers in a database, until SIGINT or SIGTERM.

    The database holds the position in each broker's log, and a new run goes on from there. Several runs on one
    database store each event once.
    """
    # Loaded by commands that use a database only.
    from pyqd.tools.common import ClientLog
    from pyqd.trace.database import Database
    from pyqd.trace.retention import Retention
    from pyqd.trace.shipper import ShipOptions, Shipper

    brokers = Brokers(TargetCluster(CtlSession(ctx.meta.get(FLAGS_KEY, {})).target, TIMEOUT_S))
    logger.handlers[:], logger.propagate = [ClientLog()], False
    logger.setLevel(logging.INFO)
    options = ShipOptions(interval.total_seconds(), once, lookupd_interval.total_seconds())
    shipper = Shipper(Database(url), brokers.clients, Retention(keep, keep_bytes), options)
    stop_on_signals(shipper.stop)
    errors = shipper.run()
    for error in errors[1:]:
        logger.error("%s", error)
    if errors:
        raise errors[0]
    return 0


class Brokers:
    """Brokers of a cluster for a shipper. A lookup daemon or a broker that fails is logged, once for each failure."""

    def __init__(self, cluster: TargetCluster) -> None:
        self._cluster = cluster
        self._failures: set[str] = set()
        self._strangers: set[str] = set()

    def clients(self) -> Sequence[HttpClient]:
        """Return clients of the brokers known now, each for the use of one thread. Raises: ClientError."""
        cluster = self._cluster
        cluster.failures.clear()
        found = cluster.brokers()
        failures = {str(failure.error) for failure in cluster.failures}
        for text in sorted(failures - self._failures):
            logger.warning("cannot look up all brokers: %s", text)
        self._failures = failures
        for address in sorted(set(cluster.strangers) - self._strangers):
            logger.warning(WITHOUT_TOKEN, address)
        self._strangers = set(cluster.strangers)
        return [
            cluster.new_broker(broker.address, TIMEOUT_S, is_trusted=broker.address not in cluster.strangers)
            for broker in found
        ]


def stop_on_signals(stop: Any) -> None:
    """Call a function at the first SIGINT or SIGTERM; a second one ends the process."""

    def handle(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
