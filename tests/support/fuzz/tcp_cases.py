"""Cases for the TCP port: meaningful streams of commands, and mutations of them."""

from __future__ import annotations

import json
import random

from tests.support.fuzz.cases import Case, Kind, Script, Step, cut_script, edge_size, ending, interleave, sending, spoil
from tests.support.nsq import MAGIC, int32, mpub_body, sized

TOPICS = ("fuzz_a", "fuzz_b", "fuzz_c#ephemeral", "f", "fuzz.d-1")
CHANNELS = ("c", "d", "e#ephemeral", "long_" + "x" * 59)
ODD_NAMES = ("", "!", "x" * 65, "#ephemeral", "a#b", "ü", "..", "x/y", "\x00", "a" * 400)
ODD_NUMBERS = (
    "-1",
    "",
    "0x10",
    "99999999999999999999",
    "1e3",
    "+5",
    " 7",
    "9223372036854775807",
    "@0",
    "@-1",
    "@",
    "each",
)
ODD_VALUES: tuple[object, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63),
    10**400,
    1.5,
    "",
    "x",
    "1",
    [],
    {},
    [[]],
    "\ud800",
    "\x00",
)
FIELDS = (
    "client_id",
    "hostname",
    "user_agent",
    "topology_region",
    "topology_zone",
    "feature_negotiation",
    "tls_v1",
    "snappy",
    "deflate",
    "message_ids",
    "heartbeat_interval",
    "output_buffer_timeout",
    "output_buffer_size",
    "sample_rate",
    "msg_timeout",
    "deflate_level",
    "short_id",
    "FEATURE_Negotiation",
)
ANSWERS = (b"FIN %s\n", b"FIN %s\n", b"FIN %s\n", b"REQ %s 0\n", b"REQ %s 5\n", b"REQ %s 100000000\n", b"TOUCH %s\n")


def topic_of(rng: random.Random) -> bytes:
    return (rng.choice(TOPICS) if rng.random() < 0.97 else rng.choice(ODD_NAMES)).encode()


def channel_of(rng: random.Random) -> bytes:
    return (rng.choice(CHANNELS) if rng.random() < 0.97 else rng.choice(ODD_NAMES)).encode()


def number_of(rng: random.Random, *usual: int) -> bytes:
    return (str(rng.choice(usual)) if rng.random() < 0.9 else rng.choice(ODD_NUMBERS)).encode()


def body_of(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 5, 40, 40, 200, 3000, max(1, edge_size(rng)))))


def bodies_of(rng: random.Random) -> list[bytes]:
    return [rng.randbytes(rng.choice((1, 3, 50))) for _ in range(rng.choice((1, 2, 10, 300)))]


def timed_body(rng: random.Random) -> bytes:
    parts = [rng.choice((0, 5, 50, -1, 2**62)).to_bytes(8, "big", signed=True) + sized(body) for body in bodies_of(rng)]
    return sized(int32(len(parts)) + b"".join(parts))


def identify_body(rng: random.Random) -> bytes:
    if rng.random() < 0.05:
        return rng.choice((b"null", b"[]", b"{", b"{}x", b"[" * 5000, b'{"a":' * 3000, b"\xff\xfe", b"1", b'{"x":NaN}'))
    fields: dict[str, object] = {"feature_negotiation": True, "heartbeat_interval": rng.choice((1000, 30000, -1))}
    for name in rng.sample(FIELDS, rng.randint(0, 5)):
        fields[name] = rng.choice(ODD_VALUES) if rng.random() < 0.3 else rng.choice((1, 250, 1000, 16384, "x", True))
    for name in ("tls_v1", "snappy", "deflate"):
        fields.pop(name, None)
    return json.dumps(fields).encode()


def identify_command(rng: random.Random, body: bytes) -> bytes:
    return b"IDENTIFY\n" + sized(body) if body else b"IDENTIFY\n" + int32(rng.choice((0, -1)))


def publish_command(rng: random.Random) -> bytes:
    topic = topic_of(rng)
    kind = rng.randrange(6)
    if kind <= 1:
        return b"PUB " + topic + b"\n" + sized(body_of(rng))
    if kind == 2:
        return b"DPUB " + topic + b" " + number_of(rng, 0, 1, 20, 3600000) + b"\n" + sized(body_of(rng))
    if kind == 3:
        return b"MPUB " + topic + b"\n" + mpub_body(bodies_of(rng))
    if kind == 4:
        return b"DMPUB " + topic + b" " + number_of(rng, 0, 5, 50) + b"\n" + mpub_body(bodies_of(rng))
    return b"DMPUB " + topic + b" " + rng.choice((b"each", b"@each")) + b"\n" + timed_body(rng)


def lying_command(rng: random.Random) -> bytes:
    """Return a command whose sizes do not match its content."""
    size = rng.choice((-1, 0, 1, 4, 8, 70000, 2**20, 2**31 - 1, -(2**31), edge_size(rng)))
    head = rng.choice((b"PUB %s", b"DPUB %s 10", b"MPUB %s", b"DMPUB %s 0", b"DMPUB %s each", b"IDENTIFY", b"AUTH"))
    if b"%s" in head:
        head %= topic_of(rng)
    bodies = bodies_of(rng)
    if rng.random() < 0.5:
        return head + b"\n" + int32(size) + body_of(rng)
    return head + b"\n" + mpub_body(bodies, count=rng.choice((0, -1, len(bodies) + 1, 2**31 - 1)))


def other_command(rng: random.Random) -> bytes:
    message_id = rng.choice((b"0" * 16, b"f" * 16, b"%016x" % rng.getrandbits(64), b"zz", b"X" * 16, b"", b"0" * 17))
    return rng.choice(
        (
            b"NOP\n",
            b"CLS\n",
            b"RDY " + number_of(rng, 0, 1, 100, 2500) + b"\n",
            b"FIN " + message_id + b"\n",
            b"REQ " + message_id + b" " + number_of(rng, 0, 10) + b"\n",
            b"TOUCH " + message_id + b"\n",
            b"SUB " + topic_of(rng) + b" " + channel_of(rng) + b"\n",
            b"AUTH\n" + sized(rng.choice((b"secret", b"x", b"\x00" * 100))),
            identify_command(rng, identify_body(rng)),
            b"\n",
            b"PUB\r\n",
            b"x" * rng.choice((3, 5000, 20000)) + rng.choice((b"\n", b"")),
            b"PUB " + b"a " * 300 + b"\n",
            rng.randbytes(rng.choice((1, 30, 300))),
        )
    )


def commands(rng: random.Random) -> bytes:
    """Return a stream of commands, some of them invalid at their place."""
    made = []
    for _ in range(rng.choice((1, 3, 10, 40))):
        kind = rng.random()
        if kind < 0.7:
            made.append(publish_command(rng))
        elif kind < 0.94:
            made.append(other_command(rng))
        else:
            made.append(lying_command(rng))
    return b"".join(made)


def consuming(rng: random.Random) -> list[Step]:
    """Return the steps of a consumer: subscribe, receive, answer, go."""
    head = b"SUB " + topic_of(rng) + b" " + channel_of(rng) + b"\nRDY " + number_of(rng, 1, 5, 100, 2500) + b"\n"
    steps = sending(rng, head)
    for _ in range(rng.choice((1, 2, 5))):
        steps += [Step("pause", b"2"), Step("read"), Step("answer", rng.choice(ANSWERS))]
        if rng.random() < 0.3:
            steps += sending(rng, commands(rng))
    if rng.random() < 0.4:
        steps += [Step("send", b"CLS\n"), Step("read"), Step("answer", b"FIN %s\n")]
    return steps


def upgrading(rng: random.Random) -> list[Step]:
    """Return the steps that negotiate TLS, a compression, or both; at times followed by violations of the
    negotiation.
    """
    wanted: list[Kind] = []
    if rng.random() < 0.6:
        wanted.append("tls")
    if rng.random() < 0.7 or not wanted:
        wanted.append(rng.choice(("snappy", "deflate")))
    names = {"tls": "tls_v1", "snappy": "snappy", "deflate": "deflate"}
    fields: dict[str, object] = {"feature_negotiation": True, **{names[kind]: True for kind in wanted}}
    if rng.random() < 0.1:
        fields |= {"snappy": True, "deflate": True}
    if rng.random() < 0.3:
        fields["deflate_level"] = rng.choice((1, 6, 9, 0, -1, 100))
    steps = sending(rng, identify_command(rng, json.dumps(fields).encode()))
    for kind in wanted:
        if rng.random() < 0.08:
            steps += sending(rng, rng.randbytes(rng.choice((1, 6, 50, 5000))), "raw")
        if rng.random() < 0.95:
            steps.append(Step(kind))
    return steps


def spoiled(rng: random.Random, step: Step) -> Step:
    """Return the step with its data changed; of layered streams, at times below the layer."""
    if step.kind != "send" or not step.data:
        return step
    return Step("raw" if rng.random() < 0.15 else "send", spoil(rng, step.data))


def script_of(rng: random.Random) -> Script:
    magic = MAGIC if rng.random() < 0.97 else rng.choice((b"", b"  V1", b"  V", b"GET ", rng.randbytes(4)))
    steps = sending(rng, magic)
    kind = rng.random()
    if kind < 0.3:
        steps += upgrading(rng)
    elif kind < 0.7:
        steps += sending(rng, identify_command(rng, identify_body(rng)))
    if rng.random() < 0.1:
        steps += sending(rng, b"AUTH\n" + sized(rng.choice((b"secret", b"secret", b"a", b"b", rng.randbytes(9)))))
    steps += consuming(rng) if rng.random() < 0.5 else sending(rng, commands(rng))
    if rng.random() < 0.3:
        steps += sending(rng, commands(rng))
    rate = rng.choice((0.0, 0.0, 0.05, 0.3))
    steps = [spoiled(rng, step) if rng.random() < rate else step for step in steps]
    script = Script("tcp", [*steps, *ending(rng)])
    return cut_script(rng, script) if rng.random() < 0.2 else script


def tcp_case(rng: random.Random, number: int) -> Case:
    return interleave(rng, number, [script_of(rng) for _ in range(rng.choice((1, 1, 2, 4)))])
