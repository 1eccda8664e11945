"""Schedules with unreadable pages that the simulator has found and shrunk, each named after its fault."""

import pytest

# Those of test_found.py take a third of the time, and are enough for a quick look.
pytestmark = pytest.mark.slow

FEATURES = ["unmapping", "unreadable", "writes"]


def test_a_full_disk_starts_with_a_ledger_that_cannot_be_read(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("http_pub", 0, 0, 0, 0),
            ("fill", 3),
            ("create_channel", 0, 0),
            ("spoil", 0, 0, 0),
        ],
        features=FEATURES,
    )


def test_the_place_behind_mended_records_is_not_taken_for_verified(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("mpub", 1, 5, 0),
            ("sub", 0, 0, 2),
            ("create_channel_at", 1, 0, 0),
            ("mpub", 0, 58666, 17986),
            ("req", 0, 1, 0, 1),
            ("write_back", 2, 1),
            ("jobs",),
            ("sub", 0, 1, 0),
            ("spoil", 2, 0, 5),
            ("kill",),
            ("cut", 2, 1),
        ],
        features=FEATURES,
    )


def test_no_record_is_stored_to_an_unreadable_page_behind_the_end(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("pub", 1, 0),
            ("pub", 0, 20927),
            ("spoil", 0, 0, 5),
            ("pub", 0, 0),
            ("cut", 3, 0),
            ("http_pub", 0, 3, 5, 0),
        ],
        features=FEATURES,
    )


def test_a_deferred_message_that_takes_the_place_of_a_lost_one_is_parked_once(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("mpub", 0, 3, 5),
            ("spoil", 0, 0, 2),
            ("create_channel", 0, 0),
            ("spoil", 2, 0, 1),
            ("dpub", 0, 0, 0),
            ("stop",),
        ],
        features=FEATURES,
    )


def test_a_message_that_takes_the_place_of_a_lost_one_counts_as_given_to_no_channel(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("mpub", 0, 3, 5),
            ("create_channel", 0, 0),
            ("sync",),
            ("delete_channel", 0),
            ("sync",),
            ("spoil", 0, 0, 0),
            ("pub", 0, 0),
            ("jobs",),
            ("create_channel", 0, 1),
            ("write_back", 1, 1),
            ("cut", 0, 0),
            ("look",),
        ],
        features=FEATURES,
    )


def test_a_message_that_takes_the_place_of_a_lost_one_that_was_finished_survives_a_power_cut(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("mpub", 0, 3, 5),
            ("sub", 0, 0, 0),
            ("rdy", 0, 10),
            ("fin", 0, 0, 39),
            ("sync",),
            ("spoil", 0, 0, 0),
            ("pub", 0, 0),
            ("jobs",),
            ("cut", 0, 0),
            ("look",),
        ],
        features=FEATURES,
    )


def test_a_message_that_takes_the_place_of_a_lost_one_that_was_cancelled_survives_a_power_cut(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("mpub", 0, 3, 5),
            ("create_channel", 0, 0),
            ("cancel", 0, 0),
            ("cancel", 0, 1),
            ("cancel", 0, 2),
            ("cancel", 0, 3),
            ("cancel", 0, 4),
            ("cancel", 0, 5),
            ("cancel", 0, 6),
            ("sync",),
            ("spoil", 0, 0, 3),
            ("pub", 0, 0),
            ("jobs",),
            ("cut", 0, 0),
            ("look",),
        ],
        features=FEATURES,
    )


def test_a_parked_message_that_takes_the_place_of_a_lost_one_that_was_finished_survives_a_power_cut(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 0, 0),
            ("jobs",),
            ("create_channel", 0, 0),
            ("dmpub", 0, 4, 5, 0),
            ("jobs",),
            ("advance", 3),
            ("advance", 2),
            ("sub", 0, 0, 0),
            ("rdy", 0, 40),
            ("fin", 0, 0, 39),
            ("sync",),
            ("sync",),
            ("spoil", 0, 0, 5),
            ("dpub", 0, 0, 3),
            ("jobs",),
            ("write_back", 1, 0),
            ("cut", 0, 0),
            ("look",),
        ],
        features=FEATURES,
    )


def test_a_parked_message_that_takes_the_place_of_a_lost_one_that_was_dropped_survives_a_power_cut(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 0, 0),
            ("jobs",),
            ("create_channel", 0, 0),
            ("dmpub", 0, 4, 5, 3),
            ("jobs",),
            ("empty_channel", 0),
            ("sync",),
            ("sync",),
            ("spoil", 0, 0, 0),
            ("dpub", 0, 0, 3),
            ("jobs",),
            ("dpub", 0, 0, 3),
            ("jobs",),
            ("write_back", 1, 2),
            ("cut", 0, 0),
            ("look",),
        ],
        features=FEATURES,
    )


def test_a_hole_in_the_log_of_a_paused_topic_counts_as_no_messages(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("dmpub", 1, 1, 0, 0),
            ("job", 0, 0),
            ("spoil", 1, 0, 1),
            ("dpub", 0, 35591, 0),
            ("pause_topic", 0, 1),
            ("pub", 1, 0),
            ("spoil", 0, 0, 0),
            ("pub", 0, 0),
            ("spoil", 2, 0, 0),
            ("pub", 1, 0),
            ("die_at_store", 31, 4, 49349),
            ("create_channel", 1, 0),
        ],
        features=FEATURES,
    )


def test_records_of_a_power_cut_may_come_back_behind_an_end_that_cannot_be_read(simulate):
    """No client was told that they are stored: either way is right."""
    simulate(
        sync_each=True,
        steps=[
            ("mpub", 0, 5, 14434),
            ("cut", 3, 55673),
            ("sub", 1, 2, 0),
            ("sync",),
            ("spoil", 0, 0, 65082),
        ],
        features=FEATURES,
    )


def test_a_dead_letter_whose_record_cannot_be_read_may_be_missing(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 0, 0),
            ("sub", 0, 0, 1),
            ("limit", 0, 0, 1),
            ("stop",),
            ("sync",),
            ("sync",),
            ("write_back", 4, 0),
            ("spoil", 2, 0, 1),
        ],
        features=FEATURES,
    )


def test_records_that_were_a_deleted_channels_may_come_back_behind_an_unreadable_end(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("http_pub", 0, 5, 5, 2),
            ("create_channel", 0, 0),
            ("kill",),
            ("cut", 3, 20108),
            ("http_pub", 1, 0, 0, 0),
            ("delete_channel", 0),
            ("cut", 3, 5),
            ("reschedule", 0, 0, 0),
            ("spoil", 2, 0, 6334),
        ],
        features=FEATURES,
    )


def test_messages_of_a_deleted_topic_may_come_back_without_node_file_and_state(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("dpub", 0, 0, 0),
            ("job", 1, 0),
            ("cut", 0, 0),
            ("sync",),
            ("dmpub", 0, 0, 0, 0),
            ("delete_topic", 0),
            ("pub", 0, 0),
            ("sync",),
            ("spoil", 2, 0, 5),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_a_segment_uses_no_drained_file_with_a_page_that_cannot_be_read(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("fill_segment",),
            ("fill_segment",),
            ("empty_first",),
            ("sync",),
            ("spoil_spare", 0, 0, 49425),
            ("cut", 0, 0),
            ("pub", 0, 36230),
            ("pub", 0, 5),
        ],
        features=[*FEATURES, "spares"],
    )


def test_a_page_that_cannot_be_read_keeps_nothing_else_of_a_commit_from_being_put_back(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 1, 10159),
            ("http_pub", 1, 3, 0, 0),
            ("pub", 0, 0),
            ("jobs",),
            ("spoil", 1, 0, 43820),
        ],
        features=FEATURES,
    )


def test_a_segment_of_a_parked_log_may_have_the_number_of_one_of_the_log_in_the_journal(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("die_at_call", 0, 1, 0),
            ("sub", 0, 0, 0),
            ("dmpub", 1, 1, 0, 0),
            ("mpub", 1, 2, 0),
            ("mpub", 2, 0, 0),
            ("pub", 0, 0),
            ("create_channel_at", 1, 0, 0),
            ("create_channel", 0, 0),
            ("sync",),
            ("spoil", 0, 0, 0),
            ("die_at_call", 0, 1, 0),
            ("fin", 0, 0, 0),
            ("dmpub", 1, 34120, 0, 0),
            ("http_pub", 1, 1, 52510, 2),
            ("sync",),
            ("dmpub", 1, 1, 0, 0),
            ("delete_topic", 0),
            ("jobs",),
            ("pub", 0, 0),
            ("write_back", 1, 22852),
            ("spoil", 2, 0, 8),
        ],
        features=FEATURES,
    )


def test_a_channel_may_have_all_again_after_state_and_description_of_the_broker_were_unreadable_one_after_the_other(
    simulate,
):
    simulate(
        sync_each=True,
        steps=[
            ("mpub", 1, 2, 0),
            ("sub", 1, 0, 0),
            ("delete_channel", 0),
            ("create_channel", 0, 0),
            ("seek", 0, 36754),
            ("seek", 0, 1),
            ("spoil", 0, 0, 2),
            ("spoil", 2, 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_a_start_that_dies_goes_on_with_the_records_that_it_has_mended(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("pub", 1, 5),
            ("create_channel", 0, 0),
            ("mpub", 0, 1, 0),
            ("mpub", 0, 1, 0),
            ("pub", 0, 0),
            ("dmpub", 0, 3, 0, 0),
            ("dmpub", 1, 5, 57484, 0),
            ("sync",),
            ("spoil", 2, 0, 35888),
            ("die_at_store", 0, 0, 0),
            ("hang_up", 0),
            ("kill",),
            ("die_at_store", 24, 0, 0),
            ("reschedule", 0, 0, 0),
        ],
        features=["bodiless", "trace", *FEATURES],
    )


def test_deferred_messages_of_a_parked_log_that_cannot_be_read_are_parked_again(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 1, 0),
            ("sub", 0, 0, 0),
            ("sub", 0, 1, 0),
            ("http_pub", 0, 1, 0, 2),
            ("write_back", 3, 5),
            ("spoil", 2, 0, 8),
            ("dpub", 0, 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


@pytest.mark.parametrize("stores", range(20, 34))
def test_a_start_that_dies_while_it_bridges_unreadable_records_loses_none_behind_them(simulate, stores):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 1, 0),
            ("http_pub", 0, 5, 44596, 0),
            ("stop",),
            ("spoil", 1, 0, 28563),
            ("die_at_store", stores, 0, 0),
            ("create_channel_at", 0, 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_a_full_disk_starts_after_a_segment_in_the_journal_was_set_aside(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("dpub", 1, 0, 0),
            ("dpub", 0, 0, 0),
            ("spoil", 0, 0, 34154),
            ("sync",),
            ("dpub", 1, 0, 0),
            ("sync",),
            ("create_channel_at", 0, 0, 0),
            ("spoil", 1, 3, 2),
            ("sync",),
            ("fill", 0),
            ("cut", 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


@pytest.mark.parametrize("published", [1, 2])
def test_a_segment_that_was_set_aside_does_not_come_back_from_the_journal_in_place_of_its_successor(
    simulate, published
):
    simulate(
        sync_each=True,
        steps=[
            ("dpub", 1, 0, 0),
            ("dpub", 0, 0, 0),
            ("spoil", 0, 0, 34154),
            ("sync",),
            ("dpub", 1, 0, 0),
            ("sync",),
            ("create_channel_at", 0, 0, 0),
            ("spoil", 1, 3, 2),
            *[("pub", 1, 0), ("jobs",)] * published,
            ("cut", 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_parked_messages_that_a_seek_skipped_may_come_again_until_a_sync_covers_a_ledger_that_was_made_again(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("die_at_store", 1, 0, 0),
            ("pub", 1, 0),
            ("dmpub", 1, 1, 0, 0),
            ("sub", 1, 1, 0),
            ("seek", 0, 1),
            ("sub", 0, 2, 0),
            ("sync",),
            ("die_at_store", 0, 0, 0),
            ("sub", 0, 0, 0),
            ("spoil", 1, 3, 42877),
            ("spoil", 4, 0, 17857),
            ("empty_channel", 0),
            ("die_at_store", 0, 0, 0),
            ("sync",),
            ("cut", 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_a_search_for_records_behind_an_unreadable_page_may_find_some_of_a_batch_that_a_kill_interrupted(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 1, 19071),
            ("create_channel", 0, 0),
            ("sync",),
            ("spoil", 4, 0, 3),
            ("die_at_store", 35, 0, 0),
            ("dmpub", 1, 5, 0, 0),
        ],
        features=["bodiless", *FEATURES],
    )


def test_a_message_that_was_due_before_the_clock_was_set_back_may_come_at_once_after_a_power_cut(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 0, 0, 1),
            ("dmpub", 0, 5, 0, 0),
            ("spoil", 0, 0, 1),
            ("limit", 0, 0, 0),
            ("job", 0, 0),
            ("stop",),
            ("dmpub", 0, 0, 0, 0),
            ("die_at_store", 0, 0, 0),
            ("jump", 0),
            ("cut", 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_held_messages_may_be_in_a_channel_whose_deletion_a_power_cut_has_undone(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("http_pub", 0, 0, 0, 2),
            ("stop",),
            ("create_channel", 0, 0),
            ("pause_topic", 0, 1),
            ("write_back", 3, 0),
            ("delete_channel", 0),
            ("spoil", 2, 0, 0),
            ("cut", 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_leftovers_of_a_power_failure_behind_an_unreadable_page_do_not_take_the_numbers_of_the_next_segment(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 0, 2, 0),
            ("pub", 1, 22399),
            ("spoil", 0, 0, 11639),
            ("sub", 1, 0, 0),
            ("mpub", 1, 1, 5),
            ("cut", 2, 1),
            ("stop",),
            ("mpub", 1, 0, 0),
            ("mpub", 0, 5, 5),
            ("stop",),
            ("pub", 0, 0),
            ("spoil", 2, 0, 19180),
            ("cut", 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_on_a_full_disk_a_start_leaves_lost_records_unfinished_that_need_a_larger_ledger(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("dmpub", 0, 5, 0, 0),
            ("mpub", 1, 5, 5),
            ("sync",),
            ("fill", 2),
            ("stop",),
            ("sub", 1, 0, 64475),
            ("sub", 0, 0, 0),
            ("sub", 0, 1, 0),
            ("spoil", 1, 3, 7665),
            ("die_at_store", 0, 0, 0),
            ("pub", 0, 0),
            ("spoil", 0, 0, 63116),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_what_a_lost_ledger_brought_back_may_go_with_a_channel_that_a_power_cut_has_undone(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 1, 0),
            ("job", 0, 0),
            ("stop",),
            ("sub", 0, 2, 0),
            ("pub", 0, 0),
            ("delete_topic", 1),
            ("jobs",),
            ("cut", 1, 8),
            ("sub", 1, 0, 0),
            ("http_pub", 0, 0, 0, 0),
            ("jobs",),
            ("create_channel", 0, 0),
            ("write_back", 2, 25414),
            ("spoil", 2, 0, 11105),
            ("cut", 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_lost_records_that_a_start_on_a_full_disk_left_unfinished_keep_their_segment(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("http_pub", 0, 0, 0, 2),
            ("mpub", 1, 0, 0),
            ("mpub", 0, 5, 5),
            ("sub", 0, 0, 3196),
            ("http_pub", 0, 2, 3, 0),
            ("spoil", 0, 0, 20645),
            ("fill", 0),
            ("spoil", 1, 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_a_search_may_find_some_of_an_interrupted_batch_that_later_messages_have_replaced_in_part(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("dmpub", 1, 0, 0, 0),
            ("pub", 0, 23359),
            ("pub", 0, 0),
            ("die_at_store", 42, 0, 0),
            ("dmpub", 0, 1, 64750, 0),
            ("mpub", 0, 1, 0),
            ("sync",),
            ("quota", 0, 0),
            ("spoil", 2, 0, 5),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_deferred_messages_that_a_power_cut_took_may_come_behind_an_unreadable_page_of_the_parked_log(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 0, 1, 0),
            ("http_pub", 1, 0, 0, 0),
            ("spoil", 2, 0, 0),
            ("mpub", 1, 0, 0),
            ("http_pub", 0, 0, 0, 2),
            ("write_back", 39029, 0),
            ("dpub", 0, 30055, 0),
            ("sub", 0, 0, 0),
            ("die_at_store", 1, 0, 0),
            ("seek", 0, 0),
            ("http_pub", 0, 5, 5, 2),
            ("spoil", 1, 1, 1),
            ("spoil", 2, 0, 50759),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_a_new_message_does_not_get_the_id_of_one_that_a_lost_ledger_brings_back(simulate):
    # The power cut leaves the parked log of messages that a seek has dropped, and neither log nor state of the topic.
    simulate(
        sync_each=False,
        steps=[
            ("sub", 1, 0, 0),
            ("http_pub", 1, 5, 5, 2),
            ("jobs",),
            ("die_at_store", 3, 0, 0),
            ("seek", 0, 1),
            ("pub", 1, 5),
            ("cut", 0, 0),
            ("pub", 1, 0),
            ("spoil", 2, 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_a_message_that_may_come_twice_may_wait_for_its_page_when_all_others_are_finished(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 0, 0),
            ("create_channel_at", 0, 0, 0),
            ("spoil", 2, 0, 0),
            ("spoil", 0, 0, 5),
            ("pause_topic", 0, 1),
            ("spoil", 1, 4, 0),
        ],
        features=["absent", "unmapping", "unreadable", "writes"],
    )


def test_a_segment_whose_name_was_lost_returns_where_node_json_that_was_set_aside_takes_of_its_space(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("http_pub", 0, 0, 0, 2),
            ("spoil", 0, 0, 0),
            ("mpub", 0, 0, 0),
            ("spoil", 0, 0, 0),
            ("sync",),
            ("sub", 0, 0, 2),
            ("fin", 0, 0, 1),
            ("begin_sync",),
            ("pub", 1, 0),
            ("pub", 0, 0),
            ("fill", 0),
            ("jobs",),
            ("spoil", 1, 0, 3),
        ],
        features=["absent", "unmapping", "unreadable", "writes"],
    )


def test_a_message_that_was_due_when_a_topics_first_channel_got_it_stays_due_if_the_clock_is_set_back(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("dmpub", 1, 1, 0, 0),
            ("advance", 1),
            ("dmpub", 0, 0, 0, 0),
            ("kill",),
            ("sub", 1, 0, 2),
            ("jump", 0),
            ("advance", 3),
        ],
        features=["absent", "unmapping", "unreadable", "writes"],
    )


def test_messages_behind_a_lost_record_that_a_ledger_on_a_full_disk_does_not_reach_come_when_there_is_space(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("http_pub", 1, 0, 0, 5),
            ("spoil", 0, 0, 0),
            ("sub", 1, 1, 0),
            ("http_pub", 1, 5, 0, 0),
            ("write_back", 3, 3),
            ("spoil", 1, 0, 0),
            ("sub", 0, 0, 0),
            ("kill",),
            ("fill", 0),
            ("pub", 1, 0),
            ("spoil", 0, 0, 60757),
            ("sub", 1, 1, 24099),
            ("free",),
            ("advance", 1),
            ("job", 0, 1),
            ("job", 0, 1),
        ],
        features=["absent", "unmapping", "unreadable", "writes"],
    )


def test_each_of_several_power_cuts_may_bring_back_the_origins_of_a_deferred_message(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("http_pub", 1, 0, 0, 2),
            ("create_channel", 0, 1),
            ("create_channel_at", 0, 0, 0),
            ("spoil", 2, 0, 0),
            ("pub", 0, 0),
            ("dpub", 1, 0, 0),
            ("spoil", 1, 3, 39295),
            ("pub", 0, 0),
            ("dpub", 1, 0, 0),
            ("delete_channel", 1),
            ("http_pub", 1, 5, 0, 2),
            ("kill",),
            ("stop",),
            ("dpub", 0, 0, 0),
            ("pub", 1, 0),
            ("cut", 3, 1),
            ("stop",),
            ("limit", 0, 0, 1),
            ("cut", 2, 60708),
        ],
        features=["absent", "unmapping", "unreadable", "writes"],
    )


def test_a_ledgers_bits_that_a_power_cut_left_newer_than_its_header_are_believed_after_a_kill_too(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 0, 0, 0),
            ("pub", 1, 0),
            ("sub", 1, 0, 0),
            ("sync",),
            ("mpub", 1, 0, 0),
            ("die_at_store", 0, 3, 8),
            ("jobs",),
            ("cancel", 1, 1),
            ("cut", 1, 3),
            ("kill",),
        ],
        features=[*FEATURES, "spares"],
    )
