"""Schedules: made from a seed, played, shrunk, and written as a line."""

import contextlib
import dataclasses
import logging
import random
import traceback
from collections.abc import Callable
from typing import Any

from pyqd.broker import segment_rewriter
from pyqd.hot.broker import intake
from pyqd.hot.diskqueue import ledger, segment
from tests.simulation.administration import Administration
from tests.simulation.features import EXCEPTIONS, UNREADABLE, Features, features_of, phrases_of, weights_of
from tests.simulation.model import Violation
from tests.simulation.process import Failures, without_gevent
from tests.simulation.unreadable import silent

Step = tuple[Any, ...]
NUMBER_MAX = 1 << 16
# Rings of ledgers begin with so many bits, so that they grow in short schedules.
RING_BITS = 64
# With EXCEPTIONS such a window gets up to 21 exceptions before it grows.
EXCEPTION_LIMITS = (RING_BITS, RING_BITS, 3)
# Some batches of the operations are stored in slices, and some in one piece.
SLICED_BYTES_MIN, SLICE_BYTES_MAX = 1500, 1000
# Of segments of an earlier run, which have 64 KiB: records are appended before all of one is read.
CHECKED_AT_ONCE_BYTES = 4096

# How often a schedule has each operation, and the ranges of its numbers; 0: any.
WEIGHTS: dict[str, tuple[float, tuple[int, ...]]] = {
    "pub": (10, (0, 0)),
    "mpub": (6, (0, 0, 0)),
    "dpub": (4, (0, 0, 0)),
    "dmpub": (3, (0, 0, 0, 0)),
    "sub": (6, (0, 0, 0)),
    "rdy": (3, (0, 0)),
    "hang_up": (2, (0,)),
    "fin": (12, (0, 0, 0)),
    "req": (6, (0, 0, 0, 0)),
    "touch": (1, (0, 0)),
    "create_topic": (1, (0,)),
    "create_channel": (3, (0, 0)),
    "delete_topic": (0.7, (0,)),
    "delete_channel": (1.5, (0,)),
    "pause_topic": (1.5, (0, 2)),
    "pause_channel": (1, (0, 2)),
    "empty_topic": (0.7, (0,)),
    "empty_channel": (0.7, (0,)),
    "sync": (4, ()),
    "begin_sync": (3, ()),
    "job": (8, (0, 2)),
    "jobs": (3, ()),
    "seek": (2, (0, 0)),
    "create_channel_at": (1, (0, 0, 0)),
    "cancel": (2, (0, 0)),
    "reschedule": (2, (0, 0, 0)),
    "read": (1, (0, 0)),
    "look": (1, ()),
    "limit": (1, (0, 0, 0)),
    "retain": (0.7, (0, 0, 0)),
    "quota": (0.7, (0, 0)),
    "http_pub": (4, (0, 0, 0, 0)),
    "housekeep": (2, ()),
    "advance": (4, (0,)),
    "jump": (1, (0,)),
    "write_back": (2, (0, 0)),
    "fill": (1, (24,)),
    "free": (1, ()),
    "stop": (1.5, ()),
    "kill": (1.5, ()),
    "cut": (2, (0, 0)),
    "fail": (2, (0, 4, 3)),
    "die_at_call": (1.5, (12, 6, 0)),
    "die_at_store": (1.5, (40, 6, 0)),
}


# Sequences of related operations; each schedule has some of them beside the random ones.
PHRASES = (
    ("fill", "stop"),
    ("fill", "fin", "fin"),
    ("fill", "cut"),
    ("sync", "cut"),
    ("kill", "cut"),
    ("jump", "cut", "pub"),
    ("seek", "cut"),
    ("die_at_store", "seek"),
    ("delete_channel", "create_channel", "sync", "cut"),
    ("delete_topic", "pub", "sync", "cut"),
    ("limit", "req", "jobs", "cut"),
)
PHRASES_MAX = 3


@dataclasses.dataclass
class Schedule:
    """Steps to be played. sync_each: with --sync-every=1. features: faults beside those of all schedules."""

    sync_each: bool
    steps: list[Step]
    features: Features = frozenset()


def made_from(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    rng = random.Random(seed)
    features = features_of(seed)
    known, phrases = weights_of(features, WEIGHTS), phrases_of(features, PHRASES)
    # Each schedule has its own mix: some have no faults, some no consumers.
    weights = {name: weight * rng.choice((0, 0.3, 1, 1, 2)) for name, (weight, _) in known.items()}
    for name in ("pub", "sub", "fin"):
        weights[name] = max(weights[name], known[name][0])
    names = rng.choices(list(weights), list(weights.values()), k=rng.randrange(10, 70))
    for _ in range(rng.randrange(PHRASES_MAX + 1)):
        at = rng.randrange(len(names))
        names[at:at] = rng.choice(phrases)
    steps: list[Step] = []
    for name in names:
        steps.append((name, *(rng.randrange(top or NUMBER_MAX) for top in known[name][1])))
    return Schedule(rng.random() < 0.5, steps, features)


@dataclasses.dataclass
class Result:
    """Outcome of a schedule. failure: None if nothing failed."""

    operations: int
    faults: int
    failure: Violation | None = None


@contextlib.contextmanager
def quiet() -> Any:
    """Log nothing but internal errors, which are failures.

    Rings of ledgers begin small, batches of some are sliced, and segments are rewritten as soon as few messages need
    them.
    """
    logger = logging.getLogger("pyqd")
    former = (logger.level, logger.propagate, logger.handlers[:])
    failures = Failures()
    logger.setLevel(logging.CRITICAL)
    logger.propagate = False
    logger.handlers = [failures]
    ring_bits = ledger.set_limits_for_tests(RING_BITS)
    slices = intake.set_limits_for_tests(SLICED_BYTES_MIN, SLICE_BYTES_MAX)
    checked_at_once = segment.set_check_bytes_for_tests(CHECKED_AT_ONCE_BYTES)
    rewritten = segment_rewriter.REWRITTEN_AGE_NS, segment_rewriter.REWRITTEN_LOG_BYTES_MIN
    segment_rewriter.REWRITTEN_AGE_NS = segment_rewriter.REWRITTEN_LOG_BYTES_MIN = 0
    try:
        with without_gevent():
            yield failures
    finally:
        ledger.set_limits_for_tests(*ring_bits)
        intake.set_limits_for_tests(*slices)
        segment.set_check_bytes_for_tests(checked_at_once)
        segment_rewriter.REWRITTEN_AGE_NS, segment_rewriter.REWRITTEN_LOG_BYTES_MIN = rewritten
        logger.level, logger.propagate, logger.handlers = former
        logger.setLevel(former[0])


def play(schedule: Schedule, failures: Failures) -> Result:
    """Play a schedule to its end. failures: of `quiet`, in which this is called."""
    if EXCEPTIONS in schedule.features:
        former = ledger.set_limits_for_tests(*EXCEPTION_LIMITS)
        try:
            return play_steps(schedule, failures)
        finally:
            ledger.set_limits_for_tests(*former)
    if UNREADABLE in schedule.features:
        with silent():
            return play_steps(schedule, failures)
    return play_steps(schedule, failures)


def play_steps(schedule: Schedule, failures: Failures) -> Result:
    """Play a schedule as `play` does."""
    failures.found.clear()
    world: Administration | None = None
    failure = None
    try:
        world = Administration(schedule.sync_each, schedule.features)
        world.failures = failures
        for step in schedule.steps:
            world.do(*step)
        world.finale()
    except Violation as violation:
        failure = violation
    except AssertionError as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        failure = Violation(f"a broken invariant: {at.name}, line {at.lineno}: {at.line}")
    finally:
        if world is not None:
            world.close()
    assert world is not None
    return Result(world.operation_count, world.fault_count, failure)


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Return a schedule that fails still, from which no step can be taken."""
    steps = schedule.steps
    size = max(1, len(steps) // 2)
    while True:
        at, changed = 0, False
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            if fails(dataclasses.replace(schedule, steps=fewer)):
                steps, changed = fewer, True
            else:
                at += size
        if size == 1 and not changed:
            break
        size = max(1, size // 2)
    return simplified(dataclasses.replace(schedule, steps=steps), fails)


def simplified(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Return the same steps with numbers as small as they can be."""
    steps = schedule.steps
    for index, step in enumerate(steps):
        for place in range(1, len(step)):
            for value in (0, 1, 2, 3, 5, 8):
                if value >= step[place]:
                    break
                tried = (*step[:place], value, *step[place + 1 :])
                if fails(dataclasses.replace(schedule, steps=[*steps[:index], tried, *steps[index + 1 :]])):
                    step = steps[index] = tried
                    break
    return schedule


def as_line(schedule: Schedule, fault: str) -> str:
    """Return a schedule as a line for found.txt, which `from_line` reads."""
    conditions = [*(["sync_each"] if schedule.sync_each else []), *sorted(schedule.features)]
    steps = ", ".join(" ".join(map(str, step)) for step in schedule.steps)
    return f"{fault.replace('|', '/')} | {' '.join(conditions)} | {steps}"


def from_line(line: str) -> tuple[Schedule, str, bool]:
    """Return the schedule of a line, the fault that it showed, and whether playing it is slow."""
    fault, conditions, steps = line.split(" | ")
    given = set(conditions.split())
    parts = [step.split() for step in steps.split(", ")]
    schedule = Schedule(
        "sync_each" in given,
        [(name, *map(int, numbers)) for name, *numbers in parts],
        frozenset(given - {"sync_each", "slow"}),
    )
    return schedule, fault, "slow" in given
