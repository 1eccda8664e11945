"""Commands to bytes, with golden bytes from the description of the protocol."""

import json

import pytest

from pyqd.client.core import commands
from pyqd.client.errors import InvalidNameError, SettingError

ID = b"0123456789abcdef"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (commands.MAGIC, b"  V2"),
        (commands.NOP, b"NOP\n"),
        (commands.CLS, b"CLS\n"),
        (commands.auth("s\u00e9cret"), b"AUTH\n\0\0\0\7s\xc3\xa9cret"),
        (commands.sub("orders", "c#ephemeral"), b"SUB orders c#ephemeral\n"),
        (commands.rdy(0), b"RDY 0\n"),
        (commands.rdy(2500), b"RDY 2500\n"),
        (commands.fin(ID), b"FIN 0123456789abcdef\n"),
        (commands.req(ID, 0), b"REQ 0123456789abcdef 0\n"),
        (commands.req(ID, 90_000), b"REQ 0123456789abcdef 90000\n"),
        (commands.touch(ID), b"TOUCH 0123456789abcdef\n"),
        (commands.pub("orders", b"body"), b"PUB orders\n\0\0\0\4body"),
        (commands.dpub("orders", b"body", 5000), b"DPUB orders 5000\n\0\0\0\4body"),
        (commands.dpub_at("orders", b"body", 1_795_177_302_000), b"DPUB orders @1795177302000\n\0\0\0\4body"),
        (commands.mpub("orders", [b"a", b"bc"]), b"MPUB orders\n\0\0\0\17\0\0\0\2\0\0\0\1a\0\0\0\2bc"),
        (
            commands.dmpub("orders", [(b"a", 0), (b"bc", 258)], at=False),
            b"DMPUB orders each\n\0\0\0\37\0\0\0\2" + bytes(8) + b"\0\0\0\1a" + bytes(6) + b"\1\2\0\0\0\2bc",
        ),
        (
            commands.dmpub("orders", [(b"a", 1)], at=True),
            b"DMPUB orders @each\n\0\0\0\21\0\0\0\1" + bytes(7) + b"\1\0\0\0\1a",
        ),
    ],
)
def test_a_command_has_the_bytes_of_the_protocol(command, expected):
    assert command == expected


def test_identify_has_its_fields_as_json():
    command = commands.identify({"feature_negotiation": True, "heartbeat_interval": 1000})
    line, body = command.split(b"\n", 1)
    assert line == b"IDENTIFY"
    assert int.from_bytes(body[:4], "big") == len(body) - 4
    assert json.loads(body[4:]) == {"feature_negotiation": True, "heartbeat_interval": 1000}


WIDE = memoryview(b"abcd").cast("H")


@pytest.mark.parametrize("body", [b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), WIDE])
def test_a_body_may_be_any_object_with_a_buffer(body):
    assert commands.pub("t", body) == b"PUB t\n\0\0\0\4abcd"
    assert commands.mpub("t", [body]) == b"MPUB t\n\0\0\0\14\0\0\0\1\0\0\0\4abcd"


NAMED = [
    lambda name: commands.sub(name, "c"),
    lambda name: commands.pub(name, b"x"),
    lambda name: commands.dpub(name, b"x", 1),
    lambda name: commands.dpub_at(name, b"x", 1),
    lambda name: commands.mpub(name, [b"x"]),
    lambda name: commands.dmpub(name, [(b"x", 1)], at=False),
    commands.check_topic,
]


@pytest.mark.parametrize("command", NAMED)
@pytest.mark.parametrize("name", ["", "a b", "t\n", "#ephemeral", "x" * 65, "\u0661", None])
def test_a_wrong_name_of_a_topic_is_refused_before_it_is_sent(command, name):
    for _ in range(2):
        with pytest.raises(InvalidNameError, match="is not the name of a topic"):
            command(name)


@pytest.mark.parametrize("command", [commands.check_channel, lambda name: commands.sub("t", name)])
def test_a_wrong_name_of_a_channel_is_refused(command):
    with pytest.raises(InvalidNameError, match="'a b' is not the name of a channel"):
        command("a b")


@pytest.mark.parametrize("name", ["t", "x" * 64, "a.b_c-D9", "t#ephemeral"])
def test_a_valid_name_is_taken(name):
    commands.check_topic(name)
    commands.check_channel(name)
    assert commands.pub(name, b"x") == b"PUB " + name.encode() + b"\n\0\0\0\1x"


@pytest.mark.parametrize(
    "build",
    [
        lambda: commands.pub("t", b""),
        lambda: commands.dpub("t", b"", 1),
        lambda: commands.mpub("t", [b"a", b""]),
        lambda: commands.dmpub("t", [(b"", 1)], at=False),
        lambda: commands.mpub("t", []),
        lambda: commands.dmpub("t", [], at=True),
        lambda: commands.req(ID, -1),
        lambda: commands.dpub("t", b"x", -1),
        lambda: commands.dpub_at("t", b"x", -1),
        lambda: commands.dmpub("t", [(b"x", -1)], at=True),
    ],
)
def test_a_command_that_a_broker_would_answer_by_closing_is_refused(build):
    with pytest.raises(SettingError, match=r"at least one|negative"):
        build()


def test_text_is_no_body():
    with pytest.raises(TypeError, match="bytes-like"):
        commands.pub("t", "text")  # type: ignore[arg-type]
