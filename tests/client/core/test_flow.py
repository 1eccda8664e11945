"""RDY and back-off of a consumer, step by step."""

import random

import pytest

from pyqd.client.core.flow import ConsumerFlow, FlowSettings, SetRdy
from pyqd.client.errors import SettingError

MAX_RDY = 2500


def flow_of(max_in_flight=1, **times):
    """Return the flow of a consumer whose back-off begins with the first failure, if no option says otherwise."""
    return ConsumerFlow(max_in_flight, FlowSettings(**{"backoff_failures": 1, **times}), random.Random(1))


def connect(flow, *keys, now=0.0, max_rdy=MAX_RDY):
    return [flow.connected(key, max_rdy, now) for key in keys]


def rdy_of(flow, keys):
    return [flow._connections[key].rdy for key in keys]


def fail(flow, key="a", now=0.0):
    """Receive a message and requeue it because of a failure."""
    flow.received(key, 1, now)
    return flow.requeued(key, now, backoff=True)


def wait_of(flow, now):
    """Return the seconds until the next deadline."""
    assert flow.next_deadline is not None
    return flow.next_deadline - now


class TestSettings:
    @pytest.mark.parametrize("name", ["backoff_first_s", "backoff_max_s", "low_rdy_idle_s", "low_rdy_s"])
    @pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1"])
    def test_a_time_that_cannot_be_waited_for_is_refused(self, name, value):
        with pytest.raises(SettingError, match=f"{name}="):
            FlowSettings(**{name: value})

    def test_redistribution_without_a_pause_is_refused(self):
        with pytest.raises(SettingError, match="redistribute_s=0"):
            FlowSettings(redistribute_s=0.0)


class TestSharing:
    def test_a_single_connection_has_the_whole(self):
        assert connect(flow_of(7), "a") == [[SetRdy("a", 7)]]

    def test_a_new_connection_takes_its_share_at_once_and_the_remainder_stays_with_the_oldest(self):
        assert connect(flow_of(7), "a", "b", "c") == [
            [("a", 7)],
            [("a", 4), ("b", 3)],
            [("a", 3), ("b", 2), ("c", 2)],
        ]

    def test_the_share_of_a_closed_connection_goes_to_the_others(self):
        flow = flow_of(7)
        connect(flow, "a", "b", "c")
        assert flow.disconnected("b", 1.0) == [("a", 4), ("c", 3)]
        assert flow.disconnected("b", 1.0) == []

    def test_a_broker_with_a_small_limit_leaves_the_rest_to_the_others(self):
        flow = flow_of(100)
        connect(flow, "a", "b")
        assert flow.connected("small", 10, 0.0) == [("a", 45), ("b", 45), ("small", 10)]

    def test_messages_bring_no_rdy(self):
        flow = flow_of(5)
        connect(flow, "a")
        flow.received("a", 5, 1.0)
        assert [flow.finished("a", 1.0), flow.finished("a", 1.0, count=3), flow.released("a", 1, 1.0)] == [[], [], []]
        assert flow.in_flight == 0

    def test_messages_in_flight_keep_their_slots_until_they_are_answered(self):
        flow = flow_of(4)
        connect(flow, "a")
        flow.received("a", 4, 0.0)
        assert flow.connected("b", MAX_RDY, 0.0) == [("a", 2)]
        assert flow.finished("a", 1.0) == [("b", 1)]
        assert flow.requeued("a", 1.0, backoff=False) == [("b", 2)]
        assert flow.finished("a", 1.0, count=2) == []

    def test_messages_that_timed_out_free_their_slots(self):
        flow = flow_of(2)
        connect(flow, "a")
        flow.received("a", 2, 0.0)
        connect(flow, "b")
        assert flow.released("a", 1, 60.0) == [("b", 1)]

    def test_messages_of_a_lost_connection_free_their_slots(self):
        flow = flow_of(2)
        connect(flow, "a")
        flow.received("a", 2, 0.0)
        connect(flow, "b")
        assert flow.disconnected("a", 1.0) == [("b", 2)]
        assert flow.in_flight == 0

    def test_results_of_a_connection_that_is_gone_change_nothing(self):
        flow = flow_of(2)
        connect(flow, "a")
        flow.received("gone", 1, 0.0)
        events = [
            flow.finished("gone", 0.0),
            flow.requeued("gone", 0.0, backoff=True),
            flow.released("gone", 1, 0.0),
        ]
        assert events == [[], [], []]
        assert (flow.in_flight, flow.backoff_level) == (0, 0)

    def test_a_key_stands_for_one_connection(self):
        flow = flow_of()
        connect(flow, "a")
        with pytest.raises(ValueError, match="'a' is there already"):
            flow.connected("a", MAX_RDY, 1.0)

    def test_messages_that_crossed_a_smaller_rdy_delay_the_others(self):
        flow = flow_of(2)
        connect(flow, "a")
        flow.connected("b", MAX_RDY, 0.0)
        flow.received("a", 2, 0.1)
        flow.received("b", 1, 0.1)
        assert flow.connected("c", MAX_RDY, 0.2) == [("a", 0), ("b", 0)]
        assert flow.finished("a", 0.3) == [("a", 1), ("b", 1)]

    def test_more_results_than_messages_are_not_counted(self):
        flow = flow_of(3)
        connect(flow, "a")
        flow.received("a", 1, 0.0)
        flow.finished("a", 0.0, count=5)
        flow.released("a", 5, 0.0)
        assert flow.in_flight == 0


class TestMaxInFlight:
    def test_a_change_reaches_all_connections(self):
        flow = flow_of(4)
        connect(flow, "a", "b")
        assert flow.set_max_in_flight(8, 1.0) == [("a", 4), ("b", 4)]
        assert flow.max_in_flight == 8
        assert flow.set_max_in_flight(0, 1.0) == [("a", 0), ("b", 0)]
        assert flow.set_max_in_flight(2, 1.0) == [("a", 1), ("b", 1)]

    def test_a_smaller_one_counts_the_messages_in_flight_of_all_connections(self):
        flow = flow_of(10)
        connect(flow, "a", "b")
        flow.received("b", 5, 0.0)
        assert flow.set_max_in_flight(5, 1.0) == [("a", 0), ("b", 2)]
        assert flow.finished("b", 2.0, count=2) == [("a", 2)]
        assert flow.finished("b", 2.0, count=3) == [("a", 3)]

    def test_a_pause_sends_rdy_0_and_resuming_shares_the_limit_again(self):
        flow = flow_of(4)
        connect(flow, "a", "b")
        assert flow.pause(1.0) == [("a", 0), ("b", 0)]
        assert flow.connected("c", MAX_RDY, 1.0) == []
        assert flow.set_max_in_flight(6, 1.0) == []
        assert flow.resume(2.0) == [("a", 2), ("b", 2), ("c", 2)]

    def test_after_stop_there_are_no_commands_and_no_deadlines(self):
        flow = flow_of(1)
        connect(flow, "a", "b")
        flow.received("a", 1, 0.0)
        assert flow.next_deadline is not None
        assert flow.stop(1.0) == []
        assert rdy_of(flow, "ab") == [0, 0]
        assert flow.requeued("a", 1.0, backoff=True) == []
        assert flow.connected("c", MAX_RDY, 1.0) == []
        assert flow.set_max_in_flight(9, 1.0) == []
        assert flow.next_deadline is None
        assert flow.tick(1000.0) == []


class TestRationing:
    def test_with_too_many_connections_as_many_as_allowed_have_one(self):
        flow = flow_of(2)
        assert connect(flow, "a", "b", "c", "d") == [[("a", 2)], [("a", 1), ("b", 1)], [], []]
        assert flow.next_deadline == 5.0

    def test_an_idle_connection_hands_over_to_one_that_waits(self):
        flow = flow_of(1)
        connect(flow, "a", "b")
        assert flow.tick(5.0) == []
        assert flow.tick(10.0) == []
        assert flow.tick(15.0) == [("a", 0), ("b", 1)]
        assert flow.next_deadline == 20.0
        assert flow.tick(17.0) == []

    def test_a_busy_connection_hands_over_when_its_time_is_up(self):
        flow = flow_of(1)
        connect(flow, "a", "b")
        moved_at = None
        for second in range(5, 60, 5):
            flow.received("a", 1, second - 1.0)
            flow.finished("a", second - 0.5)
            if flow.tick(float(second)):
                moved_at = second
                break
        assert moved_at == 35
        assert rdy_of(flow, "ab") == [0, 1]

    def test_a_message_in_flight_keeps_the_only_slot_when_rdy_moves(self):
        flow = flow_of(1)
        connect(flow, "a", "b")
        flow.received("a", 1, 0.0)
        assert flow.tick(15.0) == []
        assert flow.tick(35.0) == [("a", 0)]
        assert flow.finished("a", 100.0) == [("b", 1)]

    def test_no_connection_is_sent_rdy_0_if_none_waits_for_its_place(self):
        flow = flow_of(2)
        connect(flow, "a", "b", "c")
        assert flow.tick(15.0) == [("a", 0), ("c", 1)]
        assert rdy_of(flow, "b") == [1]

    def test_connections_that_waited_longest_are_served_first(self):
        flow = flow_of(1)
        connect(flow, *"abcd")
        served = []
        for second in range(15, 75, 5):
            served += [key for key, count in flow.tick(float(second)) if count]
        assert sorted(served[:3]) == ["b", "c", "d"]
        assert served[3:] == ["a", *served[:3], "a", *served[:3], "a"]

    def test_the_place_of_a_lost_connection_is_taken_at_once(self):
        flow = flow_of(1)
        connect(flow, "a", "b")
        assert flow.disconnected("a", 1.0) == [("b", 1)]
        assert flow.next_deadline is None


def results(flow, text, now=0.0):
    """Handle messages, one for each letter: F fails. Return the number of messages after which a back-off began."""
    for count, letter in enumerate(text, 1):
        flow.received("a", 1, now)
        if letter == "F":
            flow.requeued("a", now, backoff=True)
        else:
            flow.finished("a", now)
        if flow.backoff_level:
            return count
    return None


class TestBeginningOfBackOff:
    @pytest.fixture
    def flow(self):
        made = ConsumerFlow(5, FlowSettings(), random.Random(1))
        connect(made, "a")
        return made

    @pytest.mark.parametrize(
        ("text", "count"),
        [
            ("." * 50 + "F" + "." * 50, None),
            ("FFFF." * 2 + "....." * 20, None),
            (".FFFFF", 6),
            ("F." * 100, None),
            ("FF." * 10, 16),
            ("." * 100 + "FF." * 10, 116),
        ],
    )
    def test_it_begins_when_failures_prevail(self, flow, text, count):
        assert results(flow, text) == count

    def test_failures_before_a_back_off_do_not_begin_the_next_one(self, flow):
        assert results(flow, "FFFFF") == 5
        flow.tick(2.0)
        flow.received("a", 1, 2.0)
        flow.finished("a", 2.0)
        assert (flow.backoff_level, results(flow, "FFFF", 3.0), results(flow, "F", 3.0)) == (0, None, 1)

    def test_the_first_failure_begins_it_by_the_rule_of_nsq(self):
        flow = flow_of(5)
        connect(flow, "a")
        assert results(flow, ".F") == 2

    def test_a_dead_letter_is_a_failure_and_no_success(self):
        flow = flow_of(5, backoff_failures=2)
        connect(flow, "a")
        flow.received("a", 2, 0.0)
        assert flow.failed("a", 0.0) == []
        assert flow.released("a", 1, 0.0) == []
        assert flow.failed("a", 0.0) == [("a", 0)]
        assert (flow.backoff_level, flow.released("a", 1, 0.0), flow.in_flight) == (1, [], 0)
        assert flow.failed("gone", 0.0) == []

    @pytest.mark.parametrize("count", [0, 21, 1.5, "5", True])
    def test_a_number_of_failures_that_makes_no_sense_is_refused(self, count):
        with pytest.raises(SettingError, match="backoff_failures="):
            FlowSettings(backoff_failures=count)


class TestBackOff:
    def test_a_failure_stops_all_connections_and_one_success_of_the_probe_ends_it(self):
        flow = flow_of(5)
        connect(flow, "a")
        assert fail(flow) == [("a", 0)]
        assert (flow.backoff_level, flow._wait_ends_at is None) == (1, False)
        assert flow.next_deadline == 2.0
        assert flow.tick(1.9) == []
        assert flow.tick(2.0) == [("a", 1)]
        assert (flow.backoff_level, flow._wait_ends_at) == (1, None)
        flow.received("a", 1, 3.0)
        assert flow.finished("a", 3.0) == [("a", 5)]
        assert (flow.backoff_level, flow.next_deadline) == (0, None)

    def test_results_during_the_wait_change_nothing(self):
        flow = flow_of(5)
        connect(flow, "a")
        flow.received("a", 4, 0.0)
        fail(flow)
        assert flow.requeued("a", 0.1, backoff=True) == []
        assert flow.requeued("a", 0.1, backoff=False) == []
        assert flow.finished("a", 0.1) == []
        assert flow.released("a", 1, 0.1) == []
        assert (flow.backoff_level, flow.next_deadline, flow.in_flight) == (1, 2.0, 0)

    def test_levels_double_the_wait_up_to_the_maximum_and_each_needs_a_success(self):
        flow = flow_of(5)
        connect(flow, "a")
        waits, now = [], 0.0
        for _ in range(8):
            fail(flow, now=now)
            waits.append(wait_of(flow, now))
            now += waits[-1]
            assert flow.tick(now) == [("a", 1)]
        assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0]
        for level in range(5, 0, -1):
            flow.received("a", 1, now)
            assert flow.finished("a", now) == [("a", 0)]
            assert wait_of(flow, now) == 2.0**level
            now += 2.0**level
            flow.tick(now)
        flow.received("a", 1, now)
        assert flow.finished("a", now) == [("a", 5)]

    def test_a_requeue_without_back_off_repeats_the_wait_of_the_level(self):
        flow = flow_of(5)
        connect(flow, "a")
        flow.received("a", 1, 0.0)
        assert flow.requeued("a", 0.0, backoff=False) == []
        fail(flow)
        flow.tick(2.0)
        flow.received("a", 1, 3.0)
        assert flow.requeued("a", 3.0, backoff=False) == [("a", 0)]
        assert (flow.backoff_level, flow.next_deadline) == (1, 5.0)

    @pytest.mark.parametrize("times", [{"backoff_max_s": 0.0}, {"backoff_first_s": 0.0}, {"backoff_first_s": 61.0}])
    def test_no_back_off_if_it_is_off_or_its_first_wait_exceeds_the_maximum(self, times):
        flow = flow_of(5, **times)
        connect(flow, "a")
        assert fail(flow) == []
        assert not flow.backoff_level

    def test_jitter_shortens_the_wait_but_levels_do_not_depend_on_luck(self):
        waits = set()
        for seed in range(20):
            flow = ConsumerFlow(1, FlowSettings(1, backoff_jitter=True, backoff_max_s=4.0), random.Random(seed))
            connect(flow, "a")
            now = 0.0
            for _ in range(5):
                fail(flow, now=now)
                wait_s = wait_of(flow, now)
                waits.add(wait_s)
                now += wait_s
                flow.tick(now)
            assert flow.backoff_level == 2
        assert len(waits) == 100
        assert min(waits) >= 0.0
        assert 2.0 < max(waits) < 4.0

    def test_one_connection_probes_and_the_next_probe_is_another_one(self):
        flow = flow_of(6)
        connect(flow, *"abc")
        fail(flow, "a")
        probes = []
        for _ in range(3):
            now = flow.next_deadline
            commands = flow.tick(now)
            assert [count for _, count in commands] == [1]
            probes.append(commands[0].key)
            fail(flow, probes[-1], now)
        assert sorted(probes) == ["a", "b", "c"]

    def test_a_connection_with_messages_in_flight_is_not_the_probe_if_there_is_another(self):
        flow = flow_of(6)
        connect(flow, *"ab")
        flow.received("a", 2, 0.0)
        flow.requeued("a", 0.0, backoff=True)
        assert flow.tick(2.0) == [("b", 1)]

    def test_an_idle_probe_hands_over(self):
        flow = flow_of(6)
        connect(flow, *"ab")
        fail(flow, "a")
        ((probe, _),) = flow.tick(2.0)
        other = "b" if probe == "a" else "a"
        assert flow.next_deadline == 7.0
        assert [flow.tick(7.0), flow.tick(12.0)] == [[], [(probe, 0), (other, 1)]]

    def test_a_lost_probe_is_replaced_at_once_and_without_connections_by_the_next_one(self):
        flow = flow_of(6)
        connect(flow, *"ab")
        fail(flow, "a")
        ((probe, _),) = flow.tick(2.0)
        other = "b" if probe == "a" else "a"
        assert flow.disconnected(probe, 3.0) == [(other, 1)]
        assert flow.disconnected(other, 3.0) == []
        assert flow.connected("c", MAX_RDY, 4.0) == [("c", 1)]
        assert flow.connected("d", MAX_RDY, 4.0) == []

    def test_a_wait_that_ends_without_connections_serves_the_next_one(self):
        flow = flow_of(6)
        connect(flow, "a")
        fail(flow, "a")
        flow.disconnected("a", 1.0)
        assert flow.tick(2.0) == []
        assert flow.next_deadline is None
        assert flow.connected("a", MAX_RDY, 3.0) == [("a", 1)]

    def test_a_connection_that_joins_during_the_wait_gets_nothing_before_its_end(self):
        flow = flow_of(6)
        connect(flow, "a")
        fail(flow, "a")
        assert flow.connected("b", MAX_RDY, 1.0) == []
        assert len(flow.tick(2.0)) == 1

    def test_a_pause_outlasts_the_wait(self):
        flow = flow_of(6)
        connect(flow, "a")
        fail(flow, "a")
        flow.pause(1.0)
        assert flow.tick(2.0) == []
        assert flow.resume(3.0) == [("a", 1)]
