"""Faults of certain ranges of seeds, in addition to those of all schedules.

A range of seeds keeps its schedules, so that a seed stands for the same one in later versions. A new feature gets seeds
of its own. `KINDS` are the kinds of faults that a feature adds to the operation `fail`, `WEIGHTS` its operations, as
`schedule.WEIGHTS` has them.
"""

from tests.simulation.disk import BROKEN, NAMES, REST

# Small files: writes that end in the middle, and errors of calls that change or list names.
WRITES = "writes"
# Few files may be mapped at a time: idle ones are unmapped and mapped again.
UNMAPPING = "unmapping"
# Pages of mapped files that cannot be read.
UNREADABLE = "unreadable"
# Pages of drained segments' files, which later segments use again, that cannot be read.
SPARES = "spares"
# Commits of the journal that fail, come during a sync, or fill its files; segments and names used again behind them.
JOURNAL = "journal"
# --sync-fin.
FINS = "fins"
# Channels are prepared to be emptied, and emptied some operations later: beside FINS.
RESETS = "resets"
# Pages of segments that are not in memory when a channel comes to them.
ABSENT = "absent"
# Segments that a few messages keep are rewritten, and again, with kills and power cuts at each step of it.
REWRITES = "rewrites"
# Few unfinished messages become exceptions of ledgers, whose windows stay as small as they begin.
EXCEPTIONS = "exceptions"
# All messages are traced. Many kills, at any store, and few other faults: the trace is exact then.
TRACE = "trace"
# The trace keeps no bytes of bodies: an MPUB is a run of sizes.
BODILESS = "bodiless"
# The notes of all channels are gone before a start.
NOTES = "notes"

Features = frozenset[str]
# From the first seed of a range up to that of the next one.
RANGES: tuple[tuple[int, Features], ...] = (
    (0, frozenset()),
    (10_000_000, frozenset({WRITES})),
    (20_000_000, frozenset({WRITES, UNMAPPING})),
    (30_000_000, frozenset({WRITES, UNMAPPING, UNREADABLE})),
    (40_000_000, frozenset({WRITES, UNMAPPING, UNREADABLE, SPARES})),
    (50_000_000, frozenset({WRITES, UNMAPPING, JOURNAL})),
    (60_000_000, frozenset({WRITES, UNMAPPING, FINS})),
    (75_000_000, frozenset({WRITES, UNMAPPING, FINS, RESETS})),
    (80_000_000, frozenset({TRACE})),
    (85_000_000, frozenset({TRACE, BODILESS})),
    (90_000_000, frozenset({TRACE, WRITES, UNMAPPING, UNREADABLE})),
    (95_000_000, frozenset({TRACE, BODILESS, WRITES, UNMAPPING, UNREADABLE})),
    (120_000_000, frozenset({ABSENT, WRITES, UNMAPPING, UNREADABLE})),
    (130_000_000, frozenset({ABSENT, FINS, RESETS, JOURNAL})),
    (140_000_000, frozenset({REWRITES, WRITES, UNMAPPING})),
    (145_000_000, frozenset({REWRITES, WRITES, UNMAPPING, UNREADABLE})),
    (150_000_000, frozenset({REWRITES, WRITES, FINS, JOURNAL})),
    (160_000_000, frozenset({NOTES, WRITES, UNMAPPING, FINS, RESETS})),
    (165_000_000, frozenset({NOTES, REWRITES, WRITES, UNMAPPING})),
    (170_000_000, frozenset({EXCEPTIONS})),
    (175_000_000, frozenset({EXCEPTIONS, WRITES, UNMAPPING, FINS, RESETS})),
)
KINDS: dict[str, tuple[str, ...]] = {
    WRITES: (REST, BROKEN, NAMES),
    UNMAPPING: (),
    UNREADABLE: (),
    SPARES: (),
    JOURNAL: (),
    FINS: (),
    RESETS: (),
    ABSENT: (),
    REWRITES: (),
    EXCEPTIONS: (),
    TRACE: (),
    BODILESS: (),
    NOTES: (),
}
WEIGHTS: dict[str, dict[str, tuple[float, tuple[int, ...]]]] = {
    WRITES: {"fail_write": (5, (0, 8, 4))},
    UNMAPPING: {"fail_again": (6, (0, 12, 4)), "map_few": (4, (0,))},
    UNREADABLE: {"spoil": (3, (5, 6, 0))},
    FINS: {},
    RESETS: {"begin_empty": (1, (0,))},
    NOTES: {"lose_notes": (4, (5, 6, 0))},
    ABSENT: {"newest_job": (2, ())},
    REWRITES: {
        "fill_segment": (3, ()),
        "sub_first": (1, ()),
        "fin_most": (6, (0, 0)),
        "housekeep": (6, ()),
        "delete_first": (0.3, ()),
    },
    EXCEPTIONS: {"straggle": (8, (0, 4)), "fin_newest": (4, (0, 4))},
    TRACE: {
        "die_at_store": (8, (60, 1, 0)),
        "kill": (3, ()),
        "cut": (0.2, (0, 0)),
        "fill": (0.2, (24,)),
        "fail": (0.2, (0, 4, 3)),
        "die_at_call": (0.5, (12, 1, 0)),
    },
    SPARES: {"fill_segment": (2, ()), "empty_first": (1, ()), "spoil_spare": (1, (5, 6, 0))},
    JOURNAL: {
        "commit": (6, (0, 0)),
        "fill_journal": (2, (12,)),
        "fail_commit": (3, (2,)),
        "newest_job": (4, ()),
        "fill_segment": (1, ()),
        "empty_first": (1, ()),
        "delete_first": (0.5, ()),
    },
}
# Operations that mean something together, as `schedule.PHRASES` has them.
PHRASES: dict[str, tuple[tuple[str, ...], ...]] = {
    WRITES: (
        ("fail_write", "stop"),
        ("fill", "fail_write", "stop"),
        ("kill", "fail_write", "pub"),
        ("cut", "fail_write", "pub"),
        ("fill", "cut", "fail_write", "pub"),
        ("fail_write", "create_channel"),
        ("fail_write", "delete_channel", "jobs"),
        ("fail_write", "delete_topic", "jobs", "pub"),
        ("fail_write", "dpub", "fail_write", "req"),
        ("die_at_call", "stop"),
    ),
    UNMAPPING: (
        ("map_few", "fail_again", "sync"),
        ("map_few", "fail_again", "stop"),
        ("map_few", "fail_again", "delete_topic"),
        ("map_few", "fail_again", "delete_channel", "jobs"),
        ("map_few", "fail_again", "jobs"),
        ("kill", "fail_again", "pub"),
        ("map_few", "fail", "jobs", "sync", "cut"),
    ),
    UNREADABLE: (),
    FINS: (
        ("fin", "jobs", "cut"),
        ("fin", "jobs", "write_back", "cut"),
        ("fin", "jobs", "fin", "fin", "cut"),
        ("fin", "job", "fin", "jobs", "cut"),
        ("sub", "fin", "jobs", "fin", "jobs", "write_back", "kill", "cut"),
        ("dpub", "sub", "advance", "fin", "jobs", "cut"),
        ("req", "advance", "fin", "jobs", "write_back", "cut"),
        ("fin", "jobs", "seek", "write_back", "cut"),
        ("fin", "jobs", "empty_channel", "cut"),
        ("fin", "fail", "jobs", "sync", "jobs", "fin", "jobs", "cut"),
        ("create_channel", "sub", "fin", "jobs", "cut"),
    ),
    RESETS: (
        ("mpub", "sub", "fin", "jobs", "begin_empty", "jobs", "empty_channel", "write_back", "cut"),
        ("mpub", "sub", "fin", "jobs", "begin_empty", "empty_channel", "write_back", "cut"),
        ("mpub", "sub", "fin", "jobs", "begin_empty", "pub", "fin", "jobs", "empty_channel", "write_back", "cut"),
        ("mpub", "sub", "fin", "jobs", "begin_empty", "pause_channel", "sync", "empty_channel", "write_back", "cut"),
        ("mpub", "sub", "fin", "begin_empty", "limit", "jobs", "empty_channel", "write_back", "cut"),
    ),
    REWRITES: tuple(
        ("sub_first", *("fill_segment",) * 3, "sync", "fin_most", "housekeep", *then)
        for then in (
            ("jobs", "cut"),
            ("jobs", "kill"),
            ("job", "cut"),
            ("job", "job", "cut"),
            ("job", "job", "kill", "cut"),
            ("jobs", "sync", "cut"),
            ("die_at_call", "jobs"),
            ("die_at_store", "jobs"),
            ("die_at_call", "jobs", "cut"),
            ("fail", "jobs", "housekeep", "jobs"),
            ("fail_write", "jobs", "cut"),
            ("fail_write", "jobs", "kill", "cut"),
            ("seek", "jobs", "fin_most"),
            ("job", "seek", "jobs", "cut"),
            ("create_channel_at", "jobs"),
            ("fin", "jobs"),
            ("req", "jobs", "fin", "housekeep", "jobs", "cut"),
            ("delete_first", "jobs"),
            ("jobs", "fill_segment", "fin_most", "housekeep", "jobs", "cut"),
            ("jobs", "fill_segment", "fin_most", "housekeep", "jobs", "housekeep", "die_at_call", "jobs"),
            ("jobs", "read", "seek", "fin_most", "housekeep", "jobs", "kill"),
            ("fill", "jobs", "free", "housekeep", "jobs"),
            ("jobs", "write_back", "kill", "cut"),
            ("jobs", "stop", "fin_most"),
        )
    ),
    EXCEPTIONS: (
        ("sub", "straggle", "straggle", "straggle", "write_back", "cut"),
        ("sub", "straggle", "straggle", "jobs", "straggle", "fin", "fin", "sync", "cut"),
        ("sub", "straggle", "straggle", "jobs", "straggle", "kill", "fin"),
        ("sub", "straggle", "straggle", "jobs", "straggle", "begin_sync", "straggle", "job", "fin", "jobs", "cut"),
        ("sub", "straggle", "straggle", "jobs", "straggle", "seek", "straggle", "stop"),
        ("sub", "straggle", "straggle", "jobs", "straggle", "req", "fin", "housekeep", "sync", "cut"),
    ),
    SPARES: (
        ("fill_segment", "fill_segment", "sync", "empty_first", "jobs", "spoil_spare", "fill_segment"),
        ("fill_segment", "fill_segment", "sync", "empty_first", "sync", "spoil_spare", "fill_segment", "cut"),
        ("fill_segment", "fill_segment", "sync", "fill", "empty_first", "jobs", "spoil_spare", "fill_segment"),
    ),
    JOURNAL: (
        ("commit", "fail_commit", "commit", "commit", "commit", "cut"),
        ("fill_journal", "fail_commit", "fill_journal", "sync", "commit", "fill_journal", "cut"),
        ("commit", "begin_sync", "pub", "newest_job", "jobs", "commit", "cut"),
        ("commit", "begin_sync", "fill_journal", "jobs", "fill_journal", "cut"),
        ("fill_journal", "fail", "sync", "commit", "cut"),
        ("fill_journal", "sync", "commit", "cut"),
        ("fill_journal", "sync", "fill_journal", "empty_first", "sync", "commit", "cut"),
        (
            "commit",
            "fill_segment",
            "jobs",
            "fill_segment",
            "jobs",
            "empty_first",
            "jobs",
            "fill_segment",
            "jobs",
            "cut",
        ),
        ("fill_journal", "fill_segment", "jobs", "empty_first", "jobs", "fill_segment", "jobs", "commit", "cut"),
        ("fill_journal", "delete_first", "jobs", "fill_journal", "cut"),
        ("fill_journal", "delete_first", "fill_journal", "fill_journal", "cut"),
        ("fill_journal", "cut", "fill_journal", "cut"),
        ("fill_journal", "kill", "commit", "cut"),
        ("fill_journal", "die_at_call", "sync", "fill_journal", "cut"),
    ),
}


def features_of(seed: int) -> Features:
    """Return the features of the schedule of a seed."""
    return next(features for first, features in reversed(RANGES) if first <= seed)


def kinds_of(features: Features, always: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of faults that there are. always: those of all schedules."""
    return always + tuple(kind for feature, kinds in KINDS.items() if feature in features for kind in kinds)


def phrases_of(features: Features, always: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """Return the phrases that there are. always: those of all schedules."""
    return always + tuple(each for feature, some in PHRASES.items() if feature in features for each in some)


def weights_of(
    features: Features, always: dict[str, tuple[float, tuple[int, ...]]]
) -> dict[str, tuple[float, tuple[int, ...]]]:
    """Return how often a schedule has each operation. always: those of all schedules."""
    found = dict(always)
    for feature, weights in WEIGHTS.items():
        if feature in features:
            found.update(weights)
    return found
