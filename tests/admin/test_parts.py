"""Parts of the web admin without a broker: history, charts, sums, tables, health, bodies."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from pyqd.admin import health
from pyqd.admin.cluster import version_key
from pyqd.admin.durability import DurabilityState, full_in_s
from pyqd.admin.graphs import Graphs
from pyqd.admin.health import failures_of, findings_of_channel
from pyqd.admin.history import POINT_COUNT, STEP_S, History, since_first, thinned
from pyqd.admin.options import AdminOptions, problems_of
from pyqd.admin.pages.charts import chart, nice_ceiling, short, spark
from pyqd.admin.stats import ChannelStats, EndToEndLatency, topology_order
from pyqd.admin.upstream import Upstream, UpstreamError
from pyqd.primitives.timestamps import format_timestamp
from tests.support.http_stub import Answer, http_stub, json_answer

NAN = math.nan


def known(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


class TestHistory:
    def test_values_come_oldest_first(self) -> None:
        history = History()
        for number in range(3):
            history.record(1000 + number * STEP_S, {"depth": {("t",): number}}, {})
        # A gap stays a gap.
        history.record(1000 + 5 * STEP_S, {"depth": {("t",): 3}}, {})
        values = history.values("depth", ("t",))
        assert (len(values), known(values), known(values[-4:])) == (POINT_COUNT, [0, 1, 2, 3], [2, 3])

    def test_polls_that_are_far_apart_make_no_gaps(self) -> None:
        history = History()
        for number in range(4):
            history.record(1000 + number * 30, {"depth": {("t",): number}}, {}, bridged_s=31)
        assert history.values("depth", ("t",))[-10:] == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
        history.record(1180, {"depth": {("t",): 9}}, {}, bridged_s=31)
        assert len(known(history.values("depth", ("t",))[-9:])) == 1

    def test_a_poll_without_an_answer_is_a_gap_between_polls_that_are_far_apart(self) -> None:
        history = History()
        for number in range(4):
            found: dict[tuple[str, ...], int] = {} if number == 1 else {("t",): number}
            history.record(1000 + number * 30, {"depth": found}, {}, bridged_s=31)
        values = history.values("depth", ("t",))[-10:]
        assert (values[0], values[-4:], len(known(values))) == (0, [2, 3, 3, 3], 5)

    def test_what_is_older_than_an_hour_is_gone(self) -> None:
        history = History()
        history.record(1000, {"depth": {("old",): 1, ("t",): 1}}, {})
        for number in range(1, POINT_COUNT + 2):
            history.record(1000 + number * STEP_S, {"depth": {("t",): number}}, {})
        assert len(known(history.values("depth", ("t",)))) == POINT_COUNT
        assert known(history.values("depth", ("old",))) == []
        assert not any(key == ("old",) for _name, key in history._series)

    def test_a_rate_is_the_growth_of_a_counter_that_has_not_begun_anew(self) -> None:
        history = History()
        history.record(1000, {}, {"n": {("t",): 100}})
        assert history.rates == {}
        history.record(1010, {}, {"n": {("t",): 150, ("new",): 10}})
        assert history.rates == {("t",): 5.0, (): 5.0}
        history.record(1020, {}, {"n": {("t",): 5}})
        assert history.rates == {}

    def test_a_broker_that_misses_a_poll_makes_no_peak(self) -> None:
        history = History()
        for number, nodes in enumerate((("a", "b"), ("a",), ("a", "b"), ("a", "b"))):
            history.record(1000 + number, {}, {node: {("t",): 10**9 + number} for node in nodes})
        assert known(history.values("rate", ("t",))) == [2.0]
        assert max(rate for rates in history.node_rates.values() for rate in rates.values()) == 1.0

    def test_a_clock_that_goes_back_keeps_the_newest_slot(self) -> None:
        history = History()
        history.record(2000, {"depth": {("t",): 1}}, {"n": {("t",): 1}})
        history.record(1000, {"depth": {("t",): 2}}, {"n": {("t",): 2}})
        assert history.values("depth", ("t",))[-1] == 2

    def test_a_young_history_is_shown_on_a_short_axis(self) -> None:
        assert len(since_first([NAN] * 350 + [1.0] * 10)) == 60
        assert len(since_first([NAN] * 260 + [1.0] * 100)) == 180
        assert len(since_first([1.0] * 360)) == 360

    def test_thinning_keeps_peaks(self) -> None:
        assert thinned([1, 9, 1, NAN, NAN, NAN, 2, 2, 3], 3)[::2] == [9, 3]


class TestCharts:
    def test_a_gap_breaks_the_line(self) -> None:
        svg = str(chart([1.0] * 10 + [NAN] * 10 + [2.0] * 40, "Depth", "", 0))
        assert svg.count("<polyline") == 2

    def test_titles_and_labels_are_escaped(self) -> None:
        assert "<script>" not in str(chart([1.0], "<script>", "<script>", 0))
        assert "<script>" not in str(spark([1.0, 2.0], "<script>"))

    @pytest.mark.parametrize(
        ("value", "top"), [(NAN, 4), (0, 4), (4.1, 8), (8.5, 12), (11, 12), (999, 1000), (1001, 1200)]
    )
    def test_the_axis_ends_at_a_round_number(self, value: float, top: float) -> None:
        assert nice_ceiling(value) == top

    @pytest.mark.parametrize(("value", "text"), [(0, "0"), (950, "950"), (1234, "1.23k"), (5e6, "5M"), (2e9, "2G")])
    def test_numbers_are_short(self, value: float, text: str) -> None:
        assert short(value) == text


class TestGraphs:
    def links(self, name: str, key: tuple[str, ...], **options: Any) -> dict[str, tuple[str, dict[str, str]]]:
        found = Graphs(AdminOptions(**options)).links(name, key)
        parts = {text: urlsplit(url) for text, url in found}
        return {text: (f"{url.netloc}{url.path}", dict(parse_qsl(url.query))) for text, url in parts.items()}

    def test_without_urls_there_are_no_links_and_one_without_a_host_is_a_mistake(self) -> None:
        assert self.links("depth", ("t",)) == {}
        options = AdminOptions(nsqd_http_address=("h:1",), prometheus_url="prometheus:9090")
        assert "failed to parse --prometheus-url" in problems_of(options)[0]

    @pytest.mark.parametrize(
        ("name", "key", "target", "expression"),
        [
            (
                "depth",
                ("t",),
                "sumSeries(stats.gauges.nsq.*.topic.t.depth,stats.gauges.nsq.*.topic.t.channel.*.depth)",
                'sum({__name__=~"pyqd_(topic|channel)_depth",topic="t"})',
            ),
            (
                "in_flight",
                ("t", "c#ephemeral"),
                "sumSeries(stats.gauges.nsq.*.topic.t.channel.cephemeral.in_flight_count)",
                'sum(pyqd_channel_in_flight{topic="t",channel="c#ephemeral"})',
            ),
            (
                "rate",
                (),
                "scale(sumSeries(stats.counters.nsq.*.topic.*.message_count.count),0.0166666667)",
                "sum(rate(pyqd_topic_messages_total[5m]))",
            ),
        ],
    )
    def test_links_lead_to_the_same_numbers(
        self, name: str, key: tuple[str, ...], target: str, expression: str
    ) -> None:
        links = self.links(name, key, graphite_url="http://me:secret@graphite/x/", prometheus_url="http://prometheus")
        place, query = links["Graphite"]
        assert (place, query["target"]) == ("graphite/x/render", target)
        place, query = links["Prometheus"]
        assert (place, query["g0.expr"]) == ("prometheus/graph", expression)

    @pytest.mark.parametrize(
        ("name", "target"),
        [
            ("node_memory", "stats.gauges.nsq.10_0_0_1_4151.mem.*_bytes"),
            (
                "node_rate",
                "scale(sumSeries(stats.counters.nsq.10_0_0_1_4151.topic.*.message_count.count),0.0166666667)",
            ),
            (
                "node_depth",
                "sumSeries(stats.gauges.nsq.10_0_0_1_4151.topic.*.depth,"
                "stats.gauges.nsq.10_0_0_1_4151.topic.*.channel.*.depth)",
            ),
        ],
    )
    def test_charts_of_a_node_lead_to_its_own_series(self, name: str, target: str) -> None:
        links = self.links(name, ("10.0.0.1:4151",), graphite_url="http://graphite", prometheus_url="http://prometheus")
        assert {text: query["target"] for text, (_place, query) in links.items()} == {"Graphite": target}

    def test_prefix_and_formats_of_statsd_are_those_of_the_flags(self) -> None:
        options = {"statsd_prefix": "nsq_%s.x", "statsd_gauge_format": "", "statsd_interval_ns": 10**10}
        links = self.links("depth", ("t", "c"), graphite_url="http://graphite", proxy_graphite=True, **options)
        place, query = links["Graphite"]
        assert (place, query["target"]) == ("/render", "sumSeries(nsq_*.x.topic.t.channel.c.depth)")

    def test_a_chart_has_its_links(self) -> None:
        svg = str(chart([1.0], "Depth", "", 0, [("Graphite", "http://g/?a=1&b=<")]))
        assert '<a href="http://g/?a=1&amp;b=&lt;" rel="noreferrer">Graphite</a>' in svg


class TestDurability:
    def test_a_disk_is_full_at_the_rate_of_the_last_hour(self) -> None:
        falling = [NAN] * 300 + [10e9 - number * STEP_S * 1e6 for number in range(60)]
        left_s = full_in_s(falling, room_bytes=9e9)
        assert left_s == pytest.approx(9000)

    def test_segments_that_are_reserved_in_steps_hide_no_rate(self) -> None:
        steps = [10e9 - (number // 10) * 10 * STEP_S * 1e6 for number in range(120)]
        assert full_in_s(steps, room_bytes=9e9) == pytest.approx(9000, rel=0.05)

    @pytest.mark.parametrize(
        "values",
        [[1e9] * 60, [1e9 + number for number in range(60)], [2e9, 1e9], [NAN] * 360, [1e12 - n for n in range(60)]],
    )
    def test_a_disk_that_does_not_fill_soon_has_no_forecast(self, values: list[float]) -> None:
        assert full_in_s(values, room_bytes=1e9) is None

    def test_a_disk_without_room_is_full_now(self) -> None:
        assert full_in_s([1e9] * 60, room_bytes=0) == 0

    def test_failures_are_findings_with_a_remedy(self) -> None:
        state = DurabilityState("n", "", is_known=True, health="NOK - no space", sync_failures=2)
        found = failures_of(state, 1800.0)
        assert [each.level for each in found] == ["bad", "warn", "bad"]
        assert [each.text % each.values for each in found] == [
            "n is not healthy: no space",
            "n has had 2 failed syncs and 0 failed writes.",
            "The disk of n is full in 0.5 h at the rate of the last hour.",
        ]
        assert all(each.remedy for each in found)
        assert failures_of(DurabilityState("n", "", is_known=True, health="OK"), None) == []


class TestHealthOfAChannel:
    def finding(self, depths: list[float], **sums: int) -> str:
        channel = ChannelStats("t", "c", "*", sums={"depth": 0, "client_count": 1, **sums})
        return " ".join(each.text % each.values for each in findings_of_channel(channel, depths))

    def test_growth_is_told_with_its_size(self) -> None:
        assert self.finding([NAN, 10, 20, 5000], depth=5000) == (
            "t/c has grown from 10 to 5,000 messages within the last hour."
        )
        # A history of 4-byte numbers rounds this depth up.
        assert "has grown" in self.finding([1, 20_000_004], depth=20_000_003)

    @pytest.mark.parametrize("depths", [[10, 6000, 5000], [4500, 5000], [NAN], []])
    def test_what_has_been_as_deep_has_not_grown(self, depths: list[float]) -> None:
        assert self.finding(depths, depth=5000) == ""

    def test_a_channel_without_clients_is_told(self) -> None:
        assert self.finding([], depth=1234, client_count=0) == "t/c has no client; messages that wait: 1,234."

    def test_no_remedy_loses_messages_without_saying_so(self) -> None:
        source = Path(health.__file__).read_text()
        remedies = re.findall(r'mark\(\s*"([^"]*)"', source)
        losing = [text for text in remedies if re.search("delet|empty|cancel", text)]
        assert len(losing) == 2
        assert [text for text in losing if "loses" not in text] == []


class TestUpstream:
    def test_connections_of_brokers_that_are_gone_are_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        upstream = Upstream()
        with http_stub(lambda _path, _query: json_answer({})) as gone, http_stub(lambda *_: json_answer({})) as there:
            upstream.get(gone.address, "/info")
            ((place, (client,)),) = upstream._idle.items()
            assert client.is_open
            monkeypatch.setattr("pyqd.admin.upstream.UNUSED_S", 0.0)
            upstream.get(there.address, "/info")
            assert (client.is_open, place in upstream._idle, gone.address in upstream.spent_s) == (False,) * 3
        upstream.close()

    @pytest.mark.parametrize("length", ["Content-Length: 99\r\n", "Connection: close\r\n"])
    def test_an_answer_that_trickles_is_ended_and_its_broker_named(self, length: str) -> None:
        def trickle() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(9999)
                connection.sendall(f"HTTP/1.1 200 OK\r\n{length}\r\n".encode())
                while not is_over.wait(0.05):
                    connection.sendall(b" ")

        is_over = threading.Event()
        upstream = Upstream(timeout_s=0.2)
        with socket.create_server(("127.0.0.1", 0)) as listener, http_stub(lambda *_: json_answer({"a": 1})) as good:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            thread = threading.Thread(target=trickle)
            thread.start()
            # A call that never ends would keep the test from failing.
            timer = threading.Timer(3.0, is_over.set)
            timer.start()
            found, failures = upstream.for_each((address, good.address), lambda each: upstream.get(each, "/stats"))
            was_ended = not is_over.is_set()
            is_over.set()
            timer.cancel()
            thread.join()
        upstream.close()
        assert (found, was_ended) == ([{"a": 1}], True)
        text = f"GET http://{address}/stats: {address}: GET /stats: no whole answer within 0.6 s"
        assert failures == [text]

    def test_a_change_that_times_out_is_not_sent_again(self) -> None:
        def answer(path: str, _query: dict[str, str]) -> Answer:
            if path == "/channel/empty":
                is_over.wait(10)
            return json_answer({})

        is_over = threading.Event()
        upstream = Upstream(timeout_s=0.3)
        with http_stub(answer) as stub:
            upstream.get(stub.address, "/info")
            with pytest.raises(UpstreamError, match="timed out"):
                upstream.post(stub.address, "/channel/empty", {"topic": "t"})
            is_over.set()
            assert [path for path, _query in stub.requests] == ["/info", "/channel/empty"]
        upstream.close()

    def test_a_change_on_a_connection_that_was_closed_is_sent_again(self) -> None:
        upstream = Upstream()
        closing = iter([json_answer({}), None, json_answer({})])
        with http_stub(lambda *_: next(closing)) as stub:
            upstream.get(stub.address, "/info")
            assert upstream.post(stub.address, "/channel/empty", {"topic": "t"}) == b"{}"
            assert len(stub.requests) == 3
        upstream.close()


class TestTexts:
    def test_a_timestamp_is_shown_in_utc_to_the_millisecond(self) -> None:
        assert format_timestamp(1_500_000_000_123_000_000) == "2017-07-14 02:40:00.123"

    def test_versions_are_ordered(self) -> None:
        found = sorted(["1.10.0", "1.0.0", "0.3.8", "1.0.0-compat", "1.2.1"], key=version_key)
        assert found == ["0.3.8", "1.0.0-compat", "1.0.0", "1.2.1", "1.10.0"]


class TestSums:
    def test_latencies_are_weighted_by_their_counts(self) -> None:
        one = EndToEndLatency.of_broker({"count": 1, "percentiles": [{"quantile": 0.99, "value": 10}]})
        three = EndToEndLatency.of_broker({"count": 3, "percentiles": [{"quantile": 0.99, "value": 50}]})
        total = EndToEndLatency()
        total.add(one)
        total.add(three)
        assert total.count == 4
        assert total.percentiles == [{"quantile": 0.99, "min": 10, "max": 50, "average": 40, "count": 4}]
        assert one.percentiles[0]["value"] == 10

    def test_clients_near_the_broker_come_first(self) -> None:
        place = {"node_topology_region": "eu", "node_topology_zone": "a"}
        clients = [
            {"node": "n", **place, "topology_region": region, "topology_zone": zone}
            for region, zone in (("us", "a"), ("eu", "b"), ("eu", "a"))
        ]
        zones = [(client["topology_region"], client["topology_zone"]) for client in sorted(clients, key=topology_order)]
        assert zones == [("eu", "a"), ("eu", "b"), ("us", "a")]
