"""The daemon's routes over a broker that is no process of its own and has no clients over TCP."""

from pyqd.api.debug import DebugRoutes
from pyqd.api.restart import ProcessRoutes, RestartError
from pyqd.api.routes import daemon_routes
from pyqd.broker.broker import Broker
from pyqd.config.live_options import LiveOptions
from pyqd.debug.profiler import Profiler
from pyqd.http.messages import Route
from pyqd.metrics.identity import Identity
from pyqd.metrics.prometheus import Metrics
from pyqd.net.loop_driver import yield_to_loop
from pyqd.tcp.drain import Drain


def refuse_restart() -> int:
    raise RestartError("this broker is no process of its own")


def restart_state() -> dict[str, object]:
    return {"pid": 1, "restarting": False, "error": ""}


def routes_of(broker: Broker, identity: Identity | None = None, profiler: Profiler | None = None) -> list[Route]:
    return daemon_routes(
        broker,
        identity or Identity(hostname="h", start_ns=0),
        wait_durable=lambda _topics: None,
        metrics=Metrics(broker),
        live=LiveOptions(broker, yield_to_loop),
        debug=DebugRoutes(profiler or Profiler(), tuple),
        process=ProcessRoutes(broker, Drain(broker, set), refuse_restart, restart_state),
    )
