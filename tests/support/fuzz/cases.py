"""Cases of the fuzzer, and the mutations that spoil valid bytes.

A case consists of some connections, each with its steps, and the order of all steps. It follows from the seed and its
number alone, so that a case can be played again; the scheduling of the system does not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["send", "raw", "answer", "read", "pause", "tls", "snappy", "deflate", "half_close", "close", "reset"]
Port = Literal["tcp", "http", "https"]

PIECES_MAX = 40
SMALL = (
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    15,
    16,
    31,
    32,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    257,
    1023,
    1024,
    4095,
    4096,
    65535,
    65536,
)
INT32_EDGES = (-1, -(2**31), 2**31 - 1, 2**24, 2**16, 2**30)


class Step(NamedTuple):
    """One thing that a connection does.

    send: data, through the layers that are in place; raw: data, straight into the socket. answer: data is the command
    (FIN, REQ or TOUCH) for each message that came; the rest has no data but `pause`, whose data are so many ms.
    """

    kind: Kind
    data: bytes = b""


@dataclass
class Script:
    port: Port
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """Scripts and the order of their steps, as indexes of scripts."""

    number: int
    scripts: list[Script]
    order: list[int]

    def text(self) -> str:
        lines = [f"case {self.number}"]
        places = [0] * len(self.scripts)
        for index in self.order:
            script = self.scripts[index]
            step = script.steps[places[index]]
            places[index] += 1
            shown = repr(step.data) if len(step.data) <= 400 else f"{step.data[:400]!r}... ({len(step.data)} bytes)"
            lines.append(f"  {index} {script.port} {step.kind} {shown}")
        return "\n".join(lines)


def interleave(rng: random.Random, number: int, scripts: list[Script]) -> Case:
    """Make a case of the scripts, their steps in any order that keeps each script's own."""
    order = [index for index, script in enumerate(scripts) for _ in script.steps]
    if rng.random() < 0.7:
        rng.shuffle(order)
    return Case(number, scripts, order)


def edge_size(rng: random.Random) -> int:
    """Return a size near which something may change."""
    return max(0, rng.choice(SMALL) + rng.choice((-1, 0, 0, 1)))


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    spoiled = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        spoiled[rng.randrange(len(spoiled))] ^= 1 << rng.randrange(8)
    return bytes(spoiled)


def set_bytes(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.choice((b"\x00", b"\xff", b"\n", b"\r\n", b" ", b"%", b"\x80", b":")) + data[at + 1 :]


def cut_out(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randint(1, 16) :]


def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def repeat(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    end = at + rng.randint(1, 64)
    return data[:end] + data[at:end] * rng.choice((1, 1, 2, 30)) + data[end:]


def insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.randbytes(rng.choice((1, 1, 4, 40))) + data[at:]


def lie_in_int32(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    value = rng.choice(INT32_EDGES) if rng.random() < 0.5 else edge_size(rng)
    return data[:at] + value.to_bytes(4, "big", signed=True) + data[at + 4 :]


def swap_halves(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[at:] + data[:at]


SPOILERS: Sequence[Callable[[random.Random, bytes], bytes]] = (
    flip_bits,
    flip_bits,
    set_bytes,
    cut_out,
    truncate,
    repeat,
    insert,
    lie_in_int32,
    lie_in_int32,
    swap_halves,
)


def spoil(rng: random.Random, data: bytes) -> bytes:
    """Return the data with some of it changed."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        if data:
            data = rng.choice(SPOILERS)(rng, data)
    return data


def split(rng: random.Random, data: bytes) -> list[bytes]:
    """Cut data at random places, often nowhere."""
    count = rng.choice((0, 0, 0, 1, 1, 2, 5, PIECES_MAX))
    cuts = sorted({rng.randint(0, len(data)) for _ in range(count)} - {0, len(data)})
    return [data[at:end] for at, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def sending(rng: random.Random, data: bytes, kind: Kind = "send") -> list[Step]:
    """Return the steps that send data, in pieces, some of them slowly."""
    steps: list[Step] = []
    for piece in split(rng, data):
        steps.append(Step(kind, piece))
        if rng.random() < 0.05:
            steps.append(Step("pause", b"%d" % rng.choice((1, 5, 20))))
        if rng.random() < 0.15:
            steps.append(Step("read"))
    return steps


def ending(rng: random.Random) -> list[Step]:
    steps = [] if rng.random() < 0.3 else [Step("read")]
    if rng.random() < 0.2:
        steps += [Step("half_close"), Step("read")]
    return [*steps, Step(rng.choice(("close", "close", "reset")))]


def cut_script(rng: random.Random, script: Script) -> Script:
    """End the script at any step, at times in the middle of a sent piece."""
    at = rng.randrange(len(script.steps))
    steps = script.steps[:at]
    last = script.steps[at]
    if last.kind in ("send", "raw") and last.data:
        steps.append(Step(last.kind, last.data[: rng.randrange(len(last.data))]))
    return Script(script.port, [*steps, Step(rng.choice(("close", "reset")))])
