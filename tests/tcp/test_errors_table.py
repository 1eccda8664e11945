"""Every error a client can provoke, letter by letter, in the order the checks are made.

The texts must not depend on the server's implementation: clients match them. Errors that need a state or a clock are
tested with their subject: test_fin_req_touch, test_states, test_msg_timeout, test_sub.
"""

from __future__ import annotations

import pytest

from tests.support.nsq import Client, int32, sized
from tests.support.server import Daemon
from tests.support.two_servers import Connect

MESSAGE_TOO_BIG = int32(1048577)
BODY_TOO_BIG = int32(5242881)
UNKNOWN_ID = b"0123456789abcdef"

BEFORE_SUB: list[tuple[bytes, str, str]] = [
    (b"IDENTIFY\n", "E_BAD_BODY", "IDENTIFY failed to read body size"),
    (b"IDENTIFY\n\x00\x00\x00", "E_BAD_BODY", "IDENTIFY failed to read body size"),
    (b"IDENTIFY\n" + BODY_TOO_BIG, "E_BAD_BODY", "IDENTIFY body too big 5242881 > 5242880"),
    (b"IDENTIFY\n" + int32(2**31 - 1), "E_BAD_BODY", "IDENTIFY body too big 2147483647 > 5242880"),
    (b"IDENTIFY\n" + int32(0), "E_BAD_BODY", "IDENTIFY invalid body size 0"),
    (b"IDENTIFY\n" + int32(-1), "E_BAD_BODY", "IDENTIFY invalid body size -1"),
    (b"IDENTIFY\n" + int32(3) + b"{}", "E_BAD_BODY", "IDENTIFY failed to read body"),
    (b"IDENTIFY\n" + int32(3), "E_BAD_BODY", "IDENTIFY failed to read body"),
    (b"IDENTIFY\n" + sized(b"{]"), "E_BAD_BODY", "IDENTIFY failed to decode JSON body"),
    (b"AUTH x\n", "E_INVALID", "AUTH invalid number of parameters"),
    (b"AUTH \n", "E_INVALID", "AUTH invalid number of parameters"),
    (b"AUTH\n", "E_BAD_BODY", "AUTH failed to read body size"),
    (b"AUTH\n\x00\x00\x00", "E_BAD_BODY", "AUTH failed to read body size"),
    (b"AUTH\n" + BODY_TOO_BIG, "E_BAD_BODY", "AUTH body too big 5242881 > 5242880"),
    (b"AUTH\n" + int32(0), "E_BAD_BODY", "AUTH invalid body size 0"),
    (b"AUTH\n" + int32(-5), "E_BAD_BODY", "AUTH invalid body size -5"),
    (b"AUTH\n" + int32(6) + b"short", "E_BAD_BODY", "AUTH failed to read body"),
    (b"AUTH\n" + sized(b"secret"), "E_AUTH_DISABLED", "AUTH disabled"),
    (b"SUB\n", "E_INVALID", "SUB insufficient number of parameters"),
    (b"SUB t\n", "E_INVALID", "SUB insufficient number of parameters"),
    (b"SUB $\n", "E_INVALID", "SUB insufficient number of parameters"),
    (b"SUB $ c\n", "E_BAD_TOPIC", 'SUB topic name "$" is not valid'),
    (b"SUB $ $\n", "E_BAD_TOPIC", 'SUB topic name "$" is not valid'),
    (b"SUB t $\n", "E_BAD_CHANNEL", 'SUB channel name "$" is not valid'),
    (b"RDY 1\n", "E_INVALID", "cannot RDY in current state"),
    (b"FIN " + UNKNOWN_ID + b"\n", "E_INVALID", "cannot FIN in current state"),
    (b"REQ " + UNKNOWN_ID + b" 0\n", "E_INVALID", "cannot REQ in current state"),
    (b"TOUCH " + UNKNOWN_ID + b"\n", "E_INVALID", "cannot TOUCH in current state"),
    (b"CLS\n", "E_INVALID", "cannot CLS in current state"),
    (b"PUB\n", "E_INVALID", "PUB insufficient number of parameters"),
    (b"PUB $\n", "E_BAD_TOPIC", 'PUB topic name "$" is not valid'),
    (b"PUB err\n", "E_BAD_MESSAGE", "PUB failed to read message body size"),
    (b"PUB err\n\x00\x00\x00", "E_BAD_MESSAGE", "PUB failed to read message body size"),
    (b"PUB err\n" + int32(0), "E_BAD_MESSAGE", "PUB invalid message body size 0"),
    (b"PUB err\n" + int32(-1), "E_BAD_MESSAGE", "PUB invalid message body size -1"),
    (b"PUB err\n" + int32(-(2**31)), "E_BAD_MESSAGE", "PUB invalid message body size -2147483648"),
    (b"PUB err\n" + MESSAGE_TOO_BIG, "E_BAD_MESSAGE", "PUB message too big 1048577 > 1048576"),
    (b"PUB err\n" + int32(2**31 - 1), "E_BAD_MESSAGE", "PUB message too big 2147483647 > 1048576"),
    (b"PUB err\n" + int32(2) + b"x", "E_BAD_MESSAGE", "PUB failed to read message body"),
    (b"PUB err\n" + int32(2), "E_BAD_MESSAGE", "PUB failed to read message body"),
    (b"DPUB\n", "E_INVALID", "DPUB insufficient number of parameters"),
    (b"DPUB err\n", "E_INVALID", "DPUB insufficient number of parameters"),
    (b"DPUB $\n", "E_INVALID", "DPUB insufficient number of parameters"),
    (b"DPUB $ x\n", "E_BAD_TOPIC", 'DPUB topic name "$" is not valid'),
    (b"DPUB err x\n", "E_INVALID", "DPUB could not parse timeout x"),
    (b"DPUB err -1\n", "E_INVALID", "DPUB could not parse timeout -1"),
    (b"DPUB err 3600001\n", "E_INVALID", "DPUB timeout 3600001 out of range 0-3600000"),
    (b"DPUB err 0\n", "E_BAD_MESSAGE", "DPUB failed to read message body size"),
    (b"DPUB err 0\n" + int32(0), "E_BAD_MESSAGE", "DPUB invalid message body size 0"),
    (b"DPUB err 0\n" + int32(-1), "E_BAD_MESSAGE", "DPUB invalid message body size -1"),
    (b"DPUB err 0\n" + MESSAGE_TOO_BIG, "E_BAD_MESSAGE", "DPUB message too big 1048577 > 1048576"),
    (b"DPUB err 0\n" + int32(2) + b"x", "E_BAD_MESSAGE", "DPUB failed to read message body"),
    (b"MPUB\n", "E_INVALID", "MPUB insufficient number of parameters"),
    (b"MPUB $\n", "E_BAD_TOPIC", 'E_BAD_TOPIC MPUB topic name "$" is not valid'),
    (b"MPUB err\n", "E_BAD_BODY", "MPUB failed to read body size"),
    (b"MPUB err\n" + int32(0), "E_BAD_BODY", "MPUB invalid body size 0"),
    (b"MPUB err\n" + int32(-1), "E_BAD_BODY", "MPUB invalid body size -1"),
    (b"MPUB err\n" + BODY_TOO_BIG, "E_BAD_BODY", "MPUB body too big 5242881 > 5242880"),
    (b"MPUB err\n" + int32(9), "E_BAD_BODY", "MPUB failed to read message count"),
    (b"MPUB err\n" + int32(9) + int32(0), "E_BAD_BODY", "MPUB invalid message count 0"),
    (b"MPUB err\n" + int32(9) + int32(-3), "E_BAD_BODY", "MPUB invalid message count -3"),
    (b"MPUB err\n" + int32(9) + int32(1048576), "E_BAD_BODY", "MPUB invalid message count 1048576"),
    (b"MPUB err\n" + int32(9) + int32(1), "E_BAD_MESSAGE", "MPUB failed to read message(0) body size"),
    (b"MPUB err\n" + int32(9) + int32(1) + int32(0), "E_BAD_MESSAGE", "MPUB invalid message(0) body size 0"),
    (b"MPUB err\n" + int32(9) + int32(1) + int32(-9), "E_BAD_MESSAGE", "MPUB invalid message(0) body size -9"),
    (b"MPUB err\n" + int32(9) + int32(1) + MESSAGE_TOO_BIG, "E_BAD_MESSAGE", "MPUB message too big 1048577 > 1048576"),
    (b"MPUB err\n" + int32(9) + int32(1) + int32(2) + b"x", "E_BAD_MESSAGE", "MPUB failed to read message body"),
    (b"WRONG\n", "E_INVALID", "invalid command WRONG"),
    (b"WRONG a b\n", "E_INVALID", "invalid command WRONG"),
]

AFTER_SUB: list[tuple[bytes, str, str]] = [
    (b"IDENTIFY\n", "E_INVALID", "cannot IDENTIFY in current state"),
    (b"AUTH\n", "E_INVALID", "cannot AUTH in current state"),
    (b"AUTH x\n", "E_INVALID", "cannot AUTH in current state"),
    (b"SUB\n", "E_INVALID", "cannot SUB in current state"),
    (b"RDY x\n", "E_INVALID", "RDY could not parse count x"),
    (b"RDY -1\n", "E_INVALID", "RDY could not parse count -1"),
    (b"RDY 2501\n", "E_INVALID", "RDY count 2501 out of range 0-2500"),
    (b"FIN\n", "E_INVALID", "FIN insufficient number of params"),
    (b"FIN x\n", "E_INVALID", "invalid message ID"),
    (b"FIN \n", "E_INVALID", "invalid message ID"),
    (b"REQ\n", "E_INVALID", "REQ insufficient number of params"),
    (b"REQ " + UNKNOWN_ID + b"\n", "E_INVALID", "REQ insufficient number of params"),
    (b"REQ x\n", "E_INVALID", "REQ insufficient number of params"),
    (b"REQ x y\n", "E_INVALID", "invalid message ID"),
    (b"REQ " + UNKNOWN_ID + b" y\n", "E_INVALID", "REQ could not parse timeout y"),
    (b"REQ " + UNKNOWN_ID + b" -1\n", "E_INVALID", "REQ could not parse timeout -1"),
    (b"TOUCH\n", "E_INVALID", "TOUCH insufficient number of params"),
    (b"TOUCH x\n", "E_INVALID", "invalid message ID"),
    (b"WRONG\n", "E_INVALID", "invalid command WRONG"),
    (b"PUB $\n", "E_BAD_TOPIC", 'PUB topic name "$" is not valid'),
    (b"MPUB $\n", "E_BAD_TOPIC", 'E_BAD_TOPIC MPUB topic name "$" is not valid'),
    (b"DPUB $ 0\n", "E_BAD_TOPIC", 'DPUB topic name "$" is not valid'),
    (b"PUB err\n" + int32(0), "E_BAD_MESSAGE", "PUB invalid message body size 0"),
]


@pytest.mark.parametrize(("said", "code", "text"), BEFORE_SUB, ids=lambda value: repr(value)[:50])
def test_an_error_before_sub_has_nsqd_s_exact_text_and_is_fatal(
    client: Client, said: bytes, code: str, text: str
) -> None:
    client.send(said)
    client.close_sending()
    client.expect_fatal(code, text)


@pytest.mark.parametrize(("said", "code", "text"), AFTER_SUB, ids=lambda value: repr(value)[:50])
def test_an_error_after_sub_has_nsqd_s_exact_text_and_is_fatal(
    client: Client, topic: str, said: bytes, code: str, text: str
) -> None:
    client.sub(topic)
    client.send(said)
    client.expect_fatal(code, text)


# Results of Go's %q, which is the form of names in errors.
QUOTED = [
    (b'"', r'"\""'),
    (b"\\", r'"\\"'),
    (b'a"b\\c', r'"a\"b\\c"'),
    (b"'", '"\'"'),
    (b"`", '"`"'),
    (b"%s%d%!", '"%s%d%!"'),
    (b"\x07\x08\x0c\x0d\x09\x0b", r'"\a\b\f\r\t\v"'),
    (b"\x00\x01\x1b\x1f", r'"\x00\x01\x1b\x1f"'),
    (b"\x7f", r'"\x7f"'),
    (b"~!@$^&*()[]{}|;:,<>/?+=", '"~!@$^&*()[]{}|;:,<>/?+="'),
    (b"\xff", r'"\xff"'),
    (b"a\x80b", r'"a\x80b"'),
    (b"\xc3", r'"\xc3"'),
    (b"\xc3(", r'"\xc3("'),
    (b"\xe2\x82", r'"\xe2\x82"'),
    (b"\xf0\x9f\x98", r'"\xf0\x9f\x98"'),
    (b"\xc0\xaf", r'"\xc0\xaf"'),
    (b"\xe0\x80\xaf", r'"\xe0\x80\xaf"'),
    (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),
    (b"\xf4\x90\x80\x80", r'"\xf4\x90\x80\x80"'),
    (b"\xf5\x80\x80\x80", r'"\xf5\x80\x80\x80"'),
    ("é".encode(), '"é"'),
    ("日本語".encode(), '"日本語"'),
    ("😀".encode(), '"😀"'),
    ("e\u0301".encode(), '"e\u0301"'),
    ("\ufffd".encode(), '"\ufffd"'),
    ("\u0085".encode(), r'"\u0085"'),
    ("\u00a0".encode(), r'"\u00a0"'),
    ("\u00ad".encode(), r'"\u00ad"'),
    ("\u0378".encode(), r'"\u0378"'),
    ("\u200b".encode(), r'"\u200b"'),
    ("\u2028\u2029".encode(), r'"\u2028\u2029"'),
    ("\u3000".encode(), r'"\u3000"'),
    ("\ue000".encode(), r'"\ue000"'),
    ("\ufeff".encode(), r'"\ufeff"'),
    ("\uffff".encode(), r'"\uffff"'),
    ("\U000e0001".encode(), r'"\U000e0001"'),
    ("\U0010ffff".encode(), r'"\U0010ffff"'),
    (b"a" * 65, f'"{"a" * 65}"'),
    (b"x" * 5000, f'"{"x" * 5000}"'),
]


@pytest.mark.parametrize(("name", "quoted"), QUOTED, ids=lambda value: ascii(value)[:40])
def test_a_bad_name_comes_back_quoted_as_go_does(connect: Connect, name: bytes, quoted: str) -> None:
    for said, code, words in [
        (b"PUB %s\n", "E_BAD_TOPIC", "PUB topic"),
        (b"MPUB %s\n", "E_BAD_TOPIC", "E_BAD_TOPIC MPUB topic"),
        (b"DPUB %s 0\n", "E_BAD_TOPIC", "DPUB topic"),
        (b"SUB %s c\n", "E_BAD_TOPIC", "SUB topic"),
        (b"SUB t %s\n", "E_BAD_CHANNEL", "SUB channel"),
    ]:
        client = connect()
        client.send(said % name)
        client.expect_fatal(code, f"{words} name {quoted} is not valid")


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        (b"IDENTIFY\n" + int32(201), "E_BAD_BODY", "IDENTIFY body too big 201 > 200"),
        (b"AUTH\n" + int32(201), "E_BAD_BODY", "AUTH body too big 201 > 200"),
        (b"PUB err\n" + int32(101), "E_BAD_MESSAGE", "PUB message too big 101 > 100"),
        (b"DPUB err 0\n" + int32(101), "E_BAD_MESSAGE", "DPUB message too big 101 > 100"),
        (b"DPUB err 1001\n", "E_INVALID", "DPUB timeout 1001 out of range 0-1000"),
        (b"MPUB err\n" + int32(201), "E_BAD_BODY", "MPUB body too big 201 > 200"),
        (b"MPUB err\n" + int32(200) + int32(40), "E_BAD_BODY", "MPUB invalid message count 40"),
        (b"MPUB err\n" + int32(200) + int32(1) + int32(101), "E_BAD_MESSAGE", "MPUB message too big 101 > 100"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_limits_in_errors_are_those_of_the_flags(
    connect: Connect, narrow_server: Daemon, said: bytes, code: str, text: str
) -> None:
    client = connect(narrow_server)
    client.send(said)
    client.expect_fatal(code, text)


def test_an_error_frame_follows_all_earlier_answers(client: Client, topic: str) -> None:
    client.send(b"PUB " + topic.encode() + b"\n\x00\x00\x00\x01x" + b"PUB $\n")
    client.expect_ok()
    client.expect_fatal("E_BAD_TOPIC", 'PUB topic name "$" is not valid')


def test_the_unread_rest_of_a_refused_body_is_not_executed(client: Client, server: Daemon, topic: str) -> None:
    client.send(b"PUB $\n\x00\x00\x00\x01x" + b"PUB " + topic.encode() + b"\n\x00\x00\x00\x01x")
    client.expect_fatal("E_BAD_TOPIC", 'PUB topic name "$" is not valid')
    assert server.topic(topic) is None
