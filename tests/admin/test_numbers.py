"""Numbers of nsqadmin's pages that only some clusters have: latencies, delivery by topology, attributes of clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyqd.admin.poller import INTERVAL_MAX_S
from tests.admin.conftest import Admin
from tests.support.http_stub import Answer, http_stub, json_answer
from tests.support.server import wait_until

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

CLIENT = {
    "client_id": "worker-7",
    "hostname": "host.example.org",
    "remote_address": "10.0.0.1:4000",
    "user_agent": "tests/1",
    "connect_ts": 1,
    "tls": True,
    "tls_version": "TLS1.3",
    "tls_cipher_suite": "TLS_AES_128_GCM_SHA256",
    "tls_negotiated_protocol": "h2",
    "authed": True,
    "auth_identity": "otto",
}


def latency(count: int) -> dict[str, Any]:
    values = {0.99: 5_000_000, 0.5: 2_000_000}
    return {"count": count, "percentiles": [{"quantile": each, "value": value} for each, value in values.items()]}


def channel(name: str, **more: Any) -> dict[str, Any]:
    return {"channel_name": name, "depth": 7, "backend_depth": 3, "message_count": 100, **more}


CHANNELS = [
    channel(
        "near",
        e2e_processing_latency=latency(9),
        zone_local_msg_count=60,
        region_local_msg_count=30,
        global_msg_count=10,
        client_count=2,
        clients=[
            {
                **CLIENT,
                "auth_identity_url": "https://id.example.org/otto",
                "topology_region": "r",
                "topology_zone": "z",
            },
            {**CLIENT, "auth_identity_url": "javascript:alert(1)", "topology_region": "r", "topology_zone": "y"},
        ],
    ),
    channel("idle", e2e_processing_latency=latency(0)),
]


MEMORY = {
    "heap_objects": 4321,
    "heap_in_use_bytes": 5 << 20,
    "gc_pause_usec_95": 10,
    "gc_pause_usec_99": 20,
    "gc_pause_usec_100": 30,
    "gc_total_runs": 17,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """Address of a broker that tells all that nsqd can tell."""
    address = ""

    def answer(path: str, query: dict[str, str]) -> Answer:
        port = int(address.rpartition(":")[2])
        if path == "/info":
            topology = {"topology_region": "r", "topology_zone": "z"}
            names = {"broadcast_address": "127.0.0.1", "hostname": "h"}
            return json_answer({**names, **topology, "http_port": port, "tcp_port": 1})
        if path != "/stats":
            return json_answer({"message": "NOT_FOUND"}, 404)
        wanted = query.get("channel", "")
        channels = [each for each in CHANNELS if wanted in ("", each["channel_name"])]
        topics = [{"topic_name": "t", "message_count": 100, "depth": 2, "channels": channels}]
        return json_answer({"health": "OK", "start_time": 1, "memory": MEMORY, "topics": topics})

    with http_stub(answer) as stub:
        address = stub.address
        yield address


@pytest.fixture(scope="module")
def admin(broker: str, start_admin: Callable[..., Admin]) -> Admin:
    return start_admin("pyqadmin", f"--nsqd-http-address={broker}")


def cells(page: str, row: str) -> list[str]:
    """Return the texts of the cells of the table row that begins with a link to a path."""
    found = next(each for each in re.findall(r"<tr.*?</tr>", page, re.DOTALL) if f'<a href="{row}"' in each)
    return [" ".join(re.sub("<[^>]+>", "", cell).split()) for cell in re.findall("<td.*?</td>", found, re.DOTALL)]


def test_a_topic_has_memory_disk_and_latency_of_each_channel(admin: Admin) -> None:
    page = admin.ask("GET", "/topics/t").body.decode()
    near = cells(page, "/topics/t/near")
    assert (near[0], near[1], near[-1]) == ("7", "4 + 3", "p50 2 ms p99 5 ms")
    # Percentiles of no message say nothing.
    assert cells(page, "/topics/t/idle")[-1] == "\N{EN DASH}"


def test_a_channel_has_latency_and_delivery_by_topology_of_each_broker(admin: Admin, broker: str) -> None:
    page = admin.ask("GET", "/topics/t/near").body.decode()
    assert cells(page, f"/nodes/{broker}")[-2:] == ["p50 2 ms p99 5 ms", "zone 60 % region 30 % elsewhere 10 %"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_each_broker_has_its_rate(admin: Admin, broker: str) -> None:
    def rates() -> list[str]:
        pages = [admin.ask("GET", path).body.decode() for path in ("/topics/t", "/topics/t/near")]
        return [cells(pages[0], f"/nodes/{broker}")[4], cells(pages[1], f"/nodes/{broker}")[8]]

    # On a machine with much other work the second poll comes late.
    wait_until(lambda: rates() == ["0", "0"], "the second poll", INTERVAL_MAX_S + 20)


def test_clients_have_all_their_attributes(admin: Admin) -> None:
    page = admin.ask("GET", "/topics/t/near").body.decode()
    for text in ("worker-7", "TLS1.3", "TLS_AES_128_GCM_SHA256", "h2", "otto"):
        assert text in page
    assert page.count('href="https://id.example.org/otto"') == 1
    assert "javascript:" not in page
    # Those near their broker are marked.
    assert (page.count("same zone"), page.count("same region")) == (1, 1)


def facts(page: str) -> dict[str, str]:
    """Return the facts at the head of a page."""
    found = re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page, re.DOTALL)
    return {name: " ".join(re.sub("<[^>]+>", "", text).split()) for name, text in found}


def test_a_node_has_its_totals_memory_and_pauses(admin: Admin, broker: str) -> None:
    page = admin.ask("GET", f"/nodes/{broker}").body.decode()
    found = facts(page)
    assert {name: found[name] for name in ("Health", "Topics", "Messages", "Clients")} == {
        "Health": "OK",
        "Topics": "1",
        "Messages": "100",
        "Clients": "2",
    }
    assert (found["Memory in use"], found["Heap objects"], found["Garbage collections"]) == ("5.0 MiB", "4,321", "17")
    assert found["Their pauses: p95, p99, longest"] == "10 us, 20 us, 30 us"
    assert page.count('<figure class="chart"') == 3


def test_a_node_has_all_numbers_of_its_topics_and_channels(admin: Admin, broker: str) -> None:
    page = admin.ask("GET", f"/nodes/{broker}").body.decode()
    # Depth, memory and disk, in flight, deferred, requeued, timed out, messages, rate, clients.
    topic = cells(page, "/topics/t")
    assert (topic[:7], topic[8]) == (["16", "10 + 6", "0", "0", "0", "0", "100"], "2")
    near = cells(page, "/topics/t/near")
    assert (near[:7], near[8]) == (["7", "4 + 3", "0", "0", "0", "0", "100"], "2")


def test_a_node_has_its_clients(admin: Admin, broker: str) -> None:
    page = admin.ask("GET", f"/nodes/{broker}?view=clients").body.decode()
    assert page.count("host.example.org") == 2
    assert page.count('<a href="/topics/t/near">t/near</a>') == 2
    assert "Nothing here has the text" in admin.ask("GET", f"/nodes/{broker}?view=clients&q=nobody").body.decode()
