"""Schedules that the simulator has found and shrunk, each named after its fault."""

import pytest


def test_messages_finished_and_synced_are_not_redelivered(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 1, 0, 1),
            ("dpub", 1, 0, 0),
            ("pub", 1, 0),
            ("fin", 0, 0, 0),
            ("sync",),
            ("cut", 0, 0),
        ],
    )


def test_a_fin_whose_sync_meets_the_end_of_a_ledgers_growth_is_not_undone_by_a_power_cut(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("mpub", 1, 5, 0),
            ("sub", 1, 0, 16927),
            ("fin", 0, 1, 60749),
            ("sub", 1, 0, 52538),
            ("fin", 0, 8, 11790),
            ("jobs",),
            ("cut", 0, 0),
        ],
        features=["fins", "resets", "unmapping", "writes"],
    )


def test_a_topic_deleted_before_a_clean_stop_is_not_brought_back_by_a_power_cut(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("mpub", 0, 0, 0),
            ("sync",),
            ("delete_topic", 0),
            ("stop",),
            ("cut", 0, 0),
        ],
    )


def test_deferred_messages_stay_deferred_if_the_log_survives_a_power_cut_and_the_state_does_not(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("pub", 0, 0),
            ("die_at_call", 0, 4, 0),
            ("mpub", 0, 0, 0),
            ("begin_sync",),
            ("job", 0, 1),
            ("dmpub", 0, 1, 0, 0),
            ("cut", 1, 2),
        ],
    )


def test_the_origins_of_deferred_messages_hold_no_segment_of_an_idle_channel(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("pub", 1, 0),
            ("dpub", 1, 0, 0),
            ("begin_sync",),
            ("job", 0, 0),
            ("die_at_store", 0, 1, 0),
            ("pub", 0, 0),
        ],
    )


def test_a_cancelled_message_holds_no_segment_of_an_idle_channel(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("sub", 1, 0, 0),
            ("mpub", 1, 0, 0),
            ("kill",),
            ("die_at_call", 0, 5, 0),
            ("pub", 0, 0),
            ("cancel", 1, 0),
        ],
    )


def test_a_channel_of_a_paused_topic_has_no_depth_below_zero_after_a_power_cut(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("http_pub", 0, 0, 0, 2),
            ("create_channel", 0, 0),
            ("pause_topic", 0, 1),
            ("die_at_call", 0, 4, 59403),
            ("pub", 0, 0),
        ],
    )


def test_duplicates_of_a_power_cut_during_a_seek_are_the_same_after_a_clean_stop(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("dmpub", 1, 1, 0, 0),
            ("sub", 1, 0, 0),
            ("mpub", 1, 1, 0),
            ("stop",),
            ("advance", 0),
            ("die_at_call", 0, 4, 0),
            ("reschedule", 0, 0, 0),
            ("seek", 0, 1),
            ("cut", 1, 42135),
            ("stop",),
        ],
    )


def test_each_of_two_that_a_power_cut_during_a_seek_leaves_has_its_own_attempts(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("dmpub", 1, 1, 0, 3),
            ("sub", 1, 0, 2),
            ("mpub", 1, 0, 0),
            ("stop",),
            ("advance", 0),
            ("die_at_call", 0, 3, 1),
            ("reschedule", 0, 0, 0),
            ("seek", 0, 1),
            ("cut", 1, 42135),
        ],
    )


def test_a_message_with_an_ordinal_that_is_given_again_is_held_until_a_channel_is_durable(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 1, 2, 0),
            ("dpub", 1, 0, 0),
            ("sync",),
            ("cut", 0, 0),
            ("mpub", 1, 0, 0),
            ("job", 1, 0),
            ("die_at_store", 0, 1, 0),
            ("req", 0, 0, 0, 0),
            ("mpub", 1, 0, 0),
            ("stop",),
            ("create_channel", 0, 0),
            ("cut", 1, 3),
        ],
    )


def test_a_cursors_place_of_before_a_power_cut_is_not_believed_when_ordinals_are_given_again(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("sub", 1, 0, 1),
            ("dmpub", 1, 1, 3, 0),
            ("die_at_store", 0, 0, 0),
            ("seek", 0, 0),
            ("cut", 2, 0),
            ("req", 0, 0, 0, 0),
            ("die_at_call", 0, 0, 0),
            ("http_pub", 1, 2, 1, 0),
        ],
    )


def test_a_channel_that_takes_messages_over_after_a_power_cut_keeps_its_ledger(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("dmpub", 0, 5, 0, 0),
            ("sub", 0, 2, 0),
            ("dpub", 1, 0, 0),
            ("sub", 0, 0, 2),
            ("dmpub", 0, 14116, 54262, 1),
            ("die_at_call", 0, 4, 1),
            ("advance", 0),
            ("limit", 0, 0, 1),
            ("http_pub", 0, 0, 0, 0),
            ("sync",),
            ("stop",),
        ],
    )


def test_an_id_that_only_a_parked_log_had_is_not_given_again_after_a_stop(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("dmpub", 0, 1, 0, 0),
            ("sub", 0, 0, 0),
            ("kill",),
            ("die_at_store", 0, 1, 0),
            ("sub", 0, 0, 0),
            ("stop",),
            ("empty_channel", 0),
            ("stop",),
            ("mpub", 0, 1, 0),
        ],
    )


def test_a_fin_far_ahead_that_was_synced_once_does_not_come_again(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("http_pub", 0, 5, 0, 0),
            ("sub", 0, 0, 29348),
            ("fin", 0, 0, 13676),
            ("fin", 0, 48181, 0),
            ("sync",),
            ("cut", 0, 0),
        ],
    )


def test_a_message_that_a_lost_ledger_brings_back_stays_over_further_starts(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("dmpub", 1, 1, 0, 0),
            ("stop",),
            ("sub", 1, 0, 2),
            ("pub", 0, 0),
            ("pub", 2, 0),
            ("reschedule", 1, 1, 0),
            ("write_back", 2, 3863),
            ("dmpub", 0, 5, 5, 0),
            ("fin", 0, 0, 1),
            ("write_back", 3, 1),
            ("cut", 0, 0),
            ("cut", 0, 0),
        ],
    )


def test_a_dead_letter_is_not_missed_if_a_power_cut_takes_back_the_seek_that_brought_it(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("sub", 0, 0, 1),
            ("http_pub", 0, 0, 0, 0),
            ("create_channel", 0, 0),
            ("limit", 0, 0, 1),
            ("sub", 0, 1, 0),
            ("sub", 0, 2, 0),
            ("fin", 0, 0, 0),
            ("sync",),
            ("seek", 0, 0),
            ("die_at_store", 0, 1, 0),
            ("seek", 0, 0),
        ],
    )


def test_a_seek_after_a_kill_within_a_cancellation_leaves_the_message_out_or_not(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("http_pub", 0, 5, 0, 2),
            ("create_channel", 0, 0),
            ("mpub", 0, 5, 0),
            ("http_pub", 0, 2, 0, 0),
            ("mpub", 0, 1, 0),
            ("die_at_store", 19, 0, 0),
            ("cancel", 0, 27718),
            ("seek", 0, 0),
        ],
    )


def test_a_deleted_topic_restored_by_a_power_cut_keeps_its_cancelled_messages(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 0, 0),
            ("create_channel", 0, 0),
            ("cancel", 0, 0),
            ("cut", 16959, 0),
            ("delete_topic", 0),
            ("cut", 0, 0),
            ("seek", 0, 0),
        ],
    )


def test_messages_that_a_channel_takes_over_after_a_power_cut_stay_in_it_after_the_next(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("pub", 1, 0),
            ("pub", 0, 0),
            ("cut", 37684, 0),
            ("die_at_call", 0, 0, 0),
            ("begin_sync",),
            ("sub", 1, 2, 0),
            ("pub", 0, 0),
            ("pub", 1, 0),
            ("jobs",),
            ("sub", 0, 0, 0),
            ("sub", 1, 0, 0),
            ("cut", 2, 28900),
            ("dpub", 1, 0, 0),
            ("sub", 1, 1, 0),
            ("job", 0, 0),
            ("cut", 2, 51118),
        ],
    )


def test_a_channel_restored_by_a_power_cut_keeps_its_cancelled_messages(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 1, 0, 0),
            ("sub", 0, 0, 1),
            ("pub", 0, 0),
            ("pub", 1, 0),
            ("stop",),
            ("cancel", 1, 0),
            ("delete_channel", 0),
            ("sync",),
            ("delete_channel", 0),
            ("cut", 0, 0),
            ("seek", 0, 0),
        ],
    )


def test_a_new_message_never_gets_the_id_of_a_cancelled_one_that_only_the_parked_log_still_has(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("dmpub", 0, 1, 0, 0),
            ("create_channel", 0, 0),
            ("die_at_store", 0, 0, 0),
            ("cancel", 0, 1),
            ("cut", 0, 0),
            ("http_pub", 0, 1, 0, 2),
        ],
    )


def test_dead_letters_that_only_an_ephemeral_channel_took_end_with_it(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("sub", 0, 0, 0),
            ("sub", 1, 0, 1),
            ("pub", 1, 0),
            ("limit", 1, 0, 1),
            ("jobs",),
            ("cut", 0, 0),
            ("create_channel", 2, 2),
            ("stop",),
        ],
    )


def test_messages_of_a_topic_lost_in_a_power_cut_count_in_no_depth_of_a_channel(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("http_pub", 1, 5, 0, 0),
            ("sync",),
            ("mpub", 1, 0, 0),
            ("pause_topic", 0, 1),
            ("mpub", 0, 0, 0),
            ("mpub", 1, 5, 5),
            ("kill",),
            ("cut", 2, 50184),
            ("sub", 1, 1, 0),
        ],
    )


def test_a_power_cut_takes_back_the_seek_to_a_dead_letter(simulate):
    """The letter is durable, but the seek that brought the message back is not."""
    simulate(
        sync_each=True,
        steps=[
            ("sub", 1, 0, 1),
            ("pub", 1, 0),
            ("limit", 0, 0, 1),
            ("cut", 32584, 0),
            ("retain", 0, 0, 0),
            ("sync",),
            ("sync",),
            ("seek", 0, 0),
            ("cut", 0, 0),
        ],
    )


def test_attempts_of_a_parked_message_outlive_a_stop_a_power_cut_and_a_kill(simulate):
    """The power cut takes the mark of the delivery, and the note of the stop is used once."""
    simulate(
        sync_each=False,
        steps=[
            ("sub", 1, 0, 1),
            ("dpub", 1, 0, 0),
            ("sync",),
            ("advance", 0),
            ("stop",),
            ("cut", 0, 0),
            ("kill",),
        ],
    )


def test_records_bridged_by_a_start_are_promised_only_once_they_are_synced(simulate):
    """A second power cut removes some of the bridges, and with them the way to the records after them."""
    simulate(
        sync_each=False,
        steps=[
            ("http_pub", 1, 0, 0, 0),
            ("dmpub", 0, 0, 0, 0),
            ("stop",),
            ("pub", 1, 0),
            ("mpub", 0, 5, 5),
            ("job", 0, 0),
            ("mpub", 0, 3, 0),
            ("die_at_store", 0, 3, 50016),
            ("seek", 0, 0),
            ("pub", 1, 0),
            ("cut", 2, 1),
        ],
        features=["unmapping", "unreadable", "writes"],
    )


def test_limits_found_after_a_kill_within_their_change_are_durable_with_the_next_sync(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 0, 0),
            ("die_at_store", 2, 0, 0),
            ("retain", 0, 0, 0),
            ("req", 0, 0, 0, 0),
            ("die_at_store", 0, 1, 0),
            ("begin_sync",),
        ],
        features=["unmapping", "unreadable", "writes"],
    )


def test_a_start_that_cannot_replay_the_journal_is_refused_and_the_next_start_replays_it(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("fill_journal", 5),
            ("cut", 0, 0),
            ("fail_write", 1, 1, 3),
            ("begin_sync",),
        ],
        features=["journal", "unmapping", "writes"],
    )


def test_a_channel_that_was_spared_emptied_messages_keeps_its_own_after_a_power_cut(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("mpub", 1, 0, 0),
            ("create_channel", 0, 0),
            ("limit", 0, 0, 1),
            ("pause_topic", 0, 1),
            ("pub", 2, 0),
            ("sync",),
            ("mpub", 1, 1, 0),
            ("empty_topic", 0),
            ("cut", 3, 0),
        ],
        features=["fins", "unmapping", "writes"],
    )


def test_attempts_of_a_parked_message_are_the_same_at_each_start_after_a_power_cut(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("sync",),
            ("dpub", 0, 0, 0),
            ("create_channel", 0, 0),
            ("http_pub", 0, 5, 0, 0),
            ("advance", 0),
            ("stop",),
            ("sub", 0, 0, 14396),
            ("dmpub", 0, 0, 0, 0),
            ("die_at_call", 0, 3, 0),
            ("fin", 0, 0, 0),
            ("kill",),
        ],
        features=["fins", "unmapping", "writes"],
    )


def test_a_message_parked_after_a_power_cut_survives_a_kill_and_another_power_cut(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("dpub", 0, 639, 0),
            ("sub", 1, 0, 0),
            ("jobs",),
            ("advance", 0),
            ("cut", 0, 0),
            ("sub", 0, 0, 1),
            ("job", 0, 0),
            ("fin", 0, 0, 0),
            ("pub", 0, 0),
            ("cut", 3, 48401),
            ("kill",),
            ("cut", 0, 0),
        ],
        features=["fins", "unmapping", "writes"],
    )


def test_more_dead_letters_than_a_consumers_rdy_come_with_sync_fin(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 1, 1, 18970),
            ("mpub", 1, 5, 0),
            ("limit", 0, 0, 1),
            ("sub", 1, 1, 59684),
            ("mpub", 1, 5, 0),
            ("stop",),
        ],
        features=["fins", "unmapping", "writes"],
    )


def test_a_channel_whose_deletion_a_kill_interrupted_may_return_with_a_power_cut(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 1, 0, 0),
            ("begin_sync",),
            ("job", 0, 0),
            ("die_at_store", 0, 0, 0),
            ("pub", 1, 0),
            ("job", 0, 0),
            ("die_at_store", 1, 0, 0),
            ("delete_channel", 0),
            ("cut", 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_a_clean_stop_counts_no_names_of_a_topic_that_could_not_be_made_as_durable(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("fail_write", 2, 1, 2),
            ("sub", 1, 0, 0),
            ("stop",),
            ("retain", 0, 0, 0),
            ("sync",),
            ("cut", 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


@pytest.mark.parametrize(
    ("stores", "last"),
    [(1, ("delete_channel", 1)), (1, ("delete_topic", 1)), (3, ("empty_channel", 1))],
    ids=["channel deleted", "topic deleted", "channel emptied"],
)
def test_dead_letters_that_an_operator_deleted_are_not_missed_after_a_kill_before_the_answer(simulate, stores, last):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 0, 0, 1),
            ("limit", 0, 0, 1),
            ("mpub", 0, 0, 0),
            ("stop",),
            ("fin", 0, 0, 0),
            ("sync",),
            ("die_at_store", stores, 0, 0),
            last,
        ],
        features=["trace"],
    )


def test_a_deferred_message_that_comes_due_before_it_is_parked_has_one_attempt_after_a_kill(simulate):
    simulate(
        sync_each=True,
        steps=[("sub", 0, 0, 39285), ("http_pub", 0, 5, 0, 2), ("advance", 0), ("advance", 3), ("kill",)],
    )


def test_a_pause_that_a_kill_interrupts_may_be_undone_by_a_power_cut(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("dpub", 1, 0, 0),
            ("pause_topic", 0, 1),
            ("stop",),
            ("sub", 1, 0, 0),
            ("die_at_store", 2, 0, 0),
            ("pause_topic", 0, 0),
            ("cut", 0, 0),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_deferred_messages_are_parked_once_if_a_consumer_is_faster_than_parking(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("sub", 0, 1, 24869),
            ("dmpub", 0, 5, 0, 0),
            ("mpub", 0, 0, 0),
            ("sync",),
            ("http_pub", 0, 3, 0, 2),
            ("dmpub", 0, 45574, 3, 0),
            ("sync",),
        ],
        features=["bodiless", "trace", "unmapping", "unreadable", "writes"],
    )


def test_a_topic_that_is_created_again_with_the_same_ids_is_traced_after_a_kill(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("pub", 1, 0),
            ("delete_topic", 0),
            ("die_at_store", 45, 0, 0),
            ("pub", 1, 1),
        ],
        features=["bodiless", "trace"],
    )


def test_a_deferred_message_whose_parked_record_a_power_failure_took_is_no_dead_letter_before_its_first_delivery(
    simulate,
):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 1, 0, 3),
            ("spoil", 4, 0, 0),
            ("dmpub", 1, 3, 0, 0),
            ("sub", 0, 0, 0),
            ("limit", 1, 0, 1),
            ("cut", 3, 64701),
        ],
        features=["absent", "unmapping", "unreadable", "writes"],
    )
