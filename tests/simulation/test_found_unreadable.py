"""Schedules with unreadable pages that the simulator has found and shrunk, each with a name for what was wrong."""

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
