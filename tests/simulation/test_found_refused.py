"""Schedules with a full disk, or calls that fail, that the simulator has found and shrunk; named after the fault."""

import pytest


def test_a_channel_made_on_a_full_disk_is_whole_though_it_cannot_park(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("dpub", 1, 0, 0),
            ("fill", 3),
            ("sub", 1, 0, 0),
        ],
    )


def test_messages_that_could_not_be_parked_are_parked_before_later_ones(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("dpub", 1, 0, 3),
            ("fill", 3),
            ("sub", 1, 0, 9),
            ("free",),
            ("dpub", 1, 0, 3),
            ("pub", 1, 0),
            ("fin", 0, 0, 0),
        ],
    )


def test_a_channel_that_was_refused_is_not_there_after_a_start(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("http_pub", 0, 0, 0, 0),
            ("fail", 2, 1, 1),
            ("sub", 0, 0, 0),
            ("kill",),
        ],
    )


def test_a_topic_without_a_segment_for_want_of_space_can_be_deleted(simulate):
    simulate(
        sync_each=True,
        steps=[("fail", 0, 3, 1), ("create_topic", 0), ("die_at_store", 0, 3, 58957), ("fill", 0)],
    )


def test_a_message_behind_a_deferred_one_that_cannot_be_parked_is_delivered_in_the_same_pass(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("http_pub", 1, 0, 0, 2),
            ("fill", 3),
            ("sub", 1, 1, 3),
            ("dpub", 1, 0, 0),
            ("pub", 1, 0),
        ],
    )


def test_a_batch_behind_a_deferred_message_that_cannot_be_parked_is_delivered_in_the_same_pass(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("dmpub", 0, 1, 0, 0),
            ("fill", 3),
            ("sub", 0, 0, 93),
            ("dmpub", 0, 3, 0, 0),
        ],
    )


def test_a_deferred_message_delivered_early_for_lack_of_space_keeps_its_attempts_over_a_kill(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("dpub", 1, 0, 0),
            ("fill", 3),
            ("sub", 1, 0, 1),
            ("free",),
            ("kill",),
        ],
    )


def test_a_full_disk_starts_a_channel_whose_ledger_a_power_cut_has_removed(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 0, 0),
            ("pub", 1, 0),
            ("stop",),
            ("fill", 3),
            ("sub", 0, 0, 0),
            ("sub", 0, 0, 0),
            ("sub", 0, 0, 0),
            ("cut", 2, 24133),
        ],
    )


def test_a_full_disk_starts_a_topic_of_which_a_power_cut_has_left_the_directory(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("pub", 0, 0),
            ("fill", 0),
            ("cut", 3, 29146),
        ],
    )


def test_a_full_disk_starts_a_deferred_channel_whose_ledger_a_power_cut_has_removed(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("dpub", 0, 0, 0),
            ("sync",),
            ("fill", 3),
            ("sub", 0, 0, 0),
            ("cut", 3, 5),
        ],
    )


def test_a_full_disk_starts_parked_messages_whose_ledger_a_power_cut_has_removed(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("mpub", 1, 0, 0),
            ("create_channel_at", 0, 0, 0),
            ("dmpub", 0, 0, 0, 0),
            ("dpub", 1, 0, 0),
            ("fill", 0),
            ("cut", 3, 12815),
            ("cut", 2, 1),
        ],
    )


def test_a_start_on_a_full_disk_after_a_death_during_a_sync(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("pub", 0, 0),
            ("die_at_call", 0, 0, 0),
            ("sub", 0, 0, 0),
            ("fill", 3),
            ("sub", 0, 1, 0),
            ("begin_sync",),
            ("die_at_call", 8, 1, 0),
            ("job", 0, 0),
        ],
    )


def test_a_full_disk_starts_after_a_power_cut_at_a_call(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 0, 0, 0),
            ("write_back", 3, 63886),
            ("fill", 0),
            ("die_at_call", 0, 1, 0),
            ("touch", 0, 0),
        ],
    )


def test_fins_before_a_channel_is_emptied_on_a_full_disk_may_be_undone_by_a_power_cut(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("mpub", 0, 5, 0),
            ("sub", 0, 0, 35360),
            ("fin", 0, 1, 0),
            ("jobs",),
            ("cut", 0, 0),
            ("fill", 0),
            ("sub", 0, 1, 0),
            ("fin", 0, 0, 0),
            ("jobs",),
            ("begin_empty", 0),
            ("empty_channel", 0),
            ("cut", 2, 17824),
        ],
        features=["fins", "resets", "unmapping", "writes"],
    )


def test_a_topic_is_deleted_whole_though_nothing_more_can_be_mapped(simulate):
    simulate(
        sync_each=True,
        steps=[("dpub", 0, 0, 0), ("sub", 0, 0, 0), ("fail", 3, 0, 3), ("delete_topic", 0)],
    )


@pytest.mark.slow
def test_a_sync_writes_the_ranges_that_the_previous_process_failed_to_sync(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("mpub", 1, 0, 0),
            ("sub", 0, 0, 1),
            ("pub", 0, 0),
            ("create_channel", 1, 0),
            ("fail", 1, 0, 2),
            ("stop",),
            ("begin_sync",),
            ("jobs",),
            ("cut", 0, 0),
        ],
    )


@pytest.mark.parametrize("batch", [("mpub", 2, 5, 5), ("dmpub", 2, 5, 5, 0), ("http_pub", 2, 5, 5, 0)])
def test_a_batch_to_an_ephemeral_topic_without_channels_is_stored_whole_or_not_at_all(simulate, batch):
    simulate(sync_each=True, steps=[("fail", 3, 2, 1), batch])


def test_a_seek_that_a_full_disk_refuses_keeps_the_position_of_the_channel(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 0, 0),
            ("mpub", 0, 5, 5),
            ("sub", 1, 0, 0),
            ("job", 0, 1),
            ("sub", 0, 1, 8),
            ("req", 0, 1, 0, 1),
            ("job", 0, 0),
            ("stop",),
            ("fill", 1),
            ("cut", 0, 0),
            ("sub", 1, 1, 0),
            ("pub", 0, 0),
            ("sub", 0, 2, 0),
            ("delete_channel", 0),
            ("cut", 2, 37196),
            ("delete_channel", 1),
            ("seek", 0, 0),
        ],
    )


def test_a_sync_that_failed_in_a_start_is_made_up_for_by_the_next_one(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("http_pub", 0, 5, 0, 2),
            ("job", 0, 1),
            ("create_channel", 0, 0),
            ("kill",),
            ("fail", 1, 3, 1),
            ("fin", 0, 0, 0),
            ("cut", 2, 0),
        ],
    )


@pytest.mark.parametrize("end", [("die_at_call", 0, 0, 0), ("fail", 1, 5, 2)], ids=["killed", "refused"])
def test_records_that_a_start_has_bridged_before_it_ended_count_as_lost_in_the_next_one(simulate, end):
    simulate(
        sync_each=False,
        steps=[
            ("sub", 0, 0, 0),
            ("mpub", 0, 5, 5),
            ("pub", 0, 5),
            ("cut", 3, 0),
            end,
            ("pub", 0, 0),
            ("look",),
        ],
    )


def test_a_full_disk_has_room_for_a_segment_that_a_power_cut_has_left_half_made(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("fill_segment",),
            ("job", 2, 0),
            ("jobs",),
            ("commit", 0, 5),
            ("fill", 0),
            ("cut", 2, 1),
        ],
        features=["journal", "unmapping", "writes"],
    )


def test_a_write_that_fails_removes_the_leftover_of_an_earlier_process(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("die_at_call", 3, 0, 0),
            ("stop",),
            ("fail", 0, 0, 1),
            ("housekeep",),
        ],
        features=["journal", "unmapping", "writes"],
    )


def test_a_full_disk_starts_a_journal_with_the_beginning_of_a_segment_that_was_drained_and_removed(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("fill_segment",),
            ("jobs",),
            ("pub", 0, 5),
            ("fill_segment",),
            ("empty_first",),
            ("job", 18174, 0),
            ("fill", 0),
            ("sync",),
            ("cut", 0, 0),
        ],
        features=["absent", "fins", "journal", "resets"],
    )


def test_a_sync_that_fails_at_a_stop_on_a_full_disk_is_not_believed_by_the_next_process(simulate):
    simulate(
        sync_each=False,
        steps=[
            ("http_pub", 0, 0, 0, 0),
            ("commit", 1, 0),
            ("fill", 0),
            ("fail_commit", 1),
            ("stop",),
            ("sync",),
            ("cut", 0, 0),
        ],
        features=["absent", "fins", "journal", "resets"],
    )


def test_a_topic_may_return_if_the_sync_of_its_removed_name_failed(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("pub", 1, 0),
            ("sync",),
            ("delete_topic", 0),
            ("fail", 1, 0, 1),
            ("jobs",),
            ("sync",),
            ("cut", 0, 0),
        ],
        features=["absent", "unmapping", "unreadable", "writes"],
    )


def test_a_start_on_a_full_disk_after_one_knows_a_removed_segment_although_later_ones_have_become_spares(simulate):
    simulate(
        sync_each=True,
        steps=[
            ("fill_journal", 8),
            ("fill_journal", 5),
            ("fill_segment",),
            ("empty_first",),
            ("commit", 1, 0),
            ("cut", 3, 0),
            ("sub", 0, 0, 0),
            ("seek", 0, 1),
            ("sync",),
            ("fill", 0),
            ("cut", 0, 0),
            ("http_pub", 0, 0, 0, 2),
            ("die_at_store", 0, 2, 2),
            ("fin", 0, 0, 0),
        ],
        features=["absent", "fins", "journal", "resets"],
    )
