"""Workloads of another shape than those of the table: the same kind of load with other sizes, from the command line."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.workloads import Workload

# Option, field of Workload, help text.
OPTIONS = (
    ("messages", "messages", "in all, rounded up to whole commands"),
    ("batch", "batch", "messages in a command"),
    ("size", "body_bytes", "bytes of a message, 8 or more"),
    ("connections", "publishers", "connections that publish"),
    ("outstanding", "outstanding", "unanswered commands on each of them"),
    ("consumers", "consumers", "connections that subscribe, to each channel"),
    ("rdy", "rdy", "RDY of each of them"),
    ("channels", "channels", "of the topic, each with its consumers"),
    ("rate", "rate_per_s", "messages a second, sent at their times whatever the server does"),
)
# The counter at its head.
BODY_BYTES_MIN = 8


def at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is needed: {text}")
    return value


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each part of a workload that can be another."""
    group = parser.add_argument_group("another shape of the one workload that is named by -w")
    for option, field, what in OPTIONS:
        group.add_argument(f"--{option}", dest=f"shape_{field}", type=at_least_one, metavar="N", help=what)


def wanted(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the fields that are to be others."""
    given = {field: getattr(arguments, f"shape_{field}") for _, field, _ in OPTIONS}
    return {field: value for field, value in given.items() if value is not None}


def reshaped(workload: Workload, fields: Mapping[str, int]) -> Workload:
    """Return a workload with other sizes, named after them, so that no goal applies to it.

    Raises: ValueError for a size that this kind of load does not have.
    """
    option_of = {field: option for option, field, _ in OPTIONS}
    for field in fields:
        if not has(workload, field):
            raise ValueError(f"{workload.name} has no --{option_of[field]}")
    if fields.get("body_bytes", BODY_BYTES_MIN) < BODY_BYTES_MIN:
        raise ValueError(f"--size: a message has at least {BODY_BYTES_MIN} bytes, its counter")
    batch = fields.get("batch", workload.batch)
    has_rate = "rate_per_s" in fields or workload.rate_per_s > 0
    if batch > 1 and (has_rate or workload.defer_ms > 0):
        raise ValueError("messages that have a rate or are deferred are sent one by one: --batch=1")
    messages = -(-fields.get("messages", workload.messages) // batch) * batch
    said = ", ".join(f"{option_of[field]} {value:,}" for field, value in fields.items())
    changed: dict[str, Any] = {**fields, "messages": messages}
    return replace(workload, **changed, name=f"{workload.name}, {said}", what=f"{workload.what}; {said}")


def has(workload: Workload, field: str) -> bool:
    """Return whether a field means something to this kind of load."""
    if field in ("consumers", "rdy"):
        return workload.consumers > 0
    if field == "channels":
        return workload.kind == "fan_out"
    if field == "rate_per_s":
        return workload.kind in ("end_to_end", "deferred")
    return workload.messages > 0
