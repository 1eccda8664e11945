"""Table of the commands allowed in each state, each cell on a connection of its own."""

from __future__ import annotations

import pytest

from tests.support.nsq import ERROR, RESPONSE, Client, Frame, dpub, identify, mpub, pub, rdy, sub

UNKNOWN_ID = "0123456789abcdef"
OK = Frame(RESPONSE, b"OK")
CLOSE_WAIT = Frame(RESPONSE, b"CLOSE_WAIT")
# Allowed and without a reply.
SILENT = None


def error(text: str) -> Frame:
    return Frame(ERROR, text.encode())


def refused(command: str) -> Frame:
    return error(f"E_INVALID cannot {command} in current state")


def not_in_flight(command: str) -> Frame:
    return error(f"E_{command}_FAILED {command} {UNKNOWN_ID} failed ID not in flight")


UNKNOWN = error("E_INVALID invalid command WRONG")

COMMANDS = {
    "IDENTIFY": identify(b"{}"),
    "AUTH": b"AUTH\n\x00\x00\x00\x06secret",
    "SUB": sub("states", "c"),
    "RDY": rdy(0),
    "FIN": f"FIN {UNKNOWN_ID}\n".encode(),
    "REQ": f"REQ {UNKNOWN_ID} 0\n".encode(),
    "TOUCH": f"TOUCH {UNKNOWN_ID}\n".encode(),
    "CLS": b"CLS\n",
    "PUB": pub("states_out", b"x"),
    "MPUB": mpub("states_out", [b"x"]),
    "DPUB": dpub("states_out", 0, b"x"),
    "NOP": b"NOP\n",
    "WRONG": b"WRONG\n",
}

# One row per command: its answers in the states init, subscribed, closing.
TABLE: dict[str, tuple[Frame | None, Frame | None, Frame | None]] = {
    "IDENTIFY": (OK, refused("IDENTIFY"), refused("IDENTIFY")),
    "AUTH": (error("E_AUTH_DISABLED AUTH disabled"), refused("AUTH"), refused("AUTH")),
    "SUB": (OK, refused("SUB"), refused("SUB")),
    "RDY": (refused("RDY"), SILENT, SILENT),
    "FIN": (refused("FIN"), not_in_flight("FIN"), not_in_flight("FIN")),
    "REQ": (refused("REQ"), not_in_flight("REQ"), not_in_flight("REQ")),
    "TOUCH": (refused("TOUCH"), not_in_flight("TOUCH"), not_in_flight("TOUCH")),
    "CLS": (refused("CLS"), CLOSE_WAIT, refused("CLS")),
    "PUB": (OK, OK, OK),
    "MPUB": (OK, OK, OK),
    "DPUB": (OK, OK, OK),
    "NOP": (SILENT, SILENT, SILENT),
    "WRONG": (UNKNOWN, UNKNOWN, UNKNOWN),
}
STATES = ("init", "subscribed", "closing")
NOT_FATAL = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")

CELLS = [
    pytest.param(state, COMMANDS[command], answer, id=f"{command}_when_{state}")
    for command, answers in TABLE.items()
    for state, answer in zip(STATES, answers, strict=True)
]


def bring_into(client: Client, state: str) -> None:
    if state != "init":
        client.sub("states", "c")
    if state == "closing":
        client.send(b"CLS\n")
        client.expect_response(b"CLOSE_WAIT")


@pytest.mark.parametrize(("state", "command", "answer"), CELLS)
def test_each_command_is_allowed_only_in_its_states(
    client: Client, state: str, command: bytes, answer: Frame | None
) -> None:
    bring_into(client, state)
    client.send(command)
    if answer is not None:
        assert client.read_frame() == answer
    if answer is not None and answer.type == ERROR and not answer.data.startswith(NOT_FATAL):
        client.expect_closed()
    else:
        client.expect_alive()


@pytest.mark.parametrize("command", ["IDENTIFY", "AUTH"])
@pytest.mark.parametrize("state", ["subscribed", "closing"])
def test_the_state_is_checked_before_the_body_is_read(client: Client, state: str, command: str) -> None:
    bring_into(client, state)
    client.send(f"{command}\n".encode())
    assert client.read_frame() == refused(command)
    client.expect_closed()


@pytest.mark.parametrize("command", ["SUB", "RDY x", "FIN", "REQ", "TOUCH x", "CLS x"])
def test_the_state_is_checked_before_the_parameters(client: Client, command: str) -> None:
    state = "subscribed" if command == "SUB" else "init"
    bring_into(client, state)
    client.send(f"{command}\n".encode())
    assert client.read_frame() == refused(command.split()[0])
    client.expect_closed()


def test_publishing_does_not_change_the_state(client: Client) -> None:
    client.send(pub("states_out", b"x") + mpub("states_out", [b"x"]) + dpub("states_out", 0, b"x") + b"NOP\n")
    client.expect_ok(3)
    client.send(identify(b"{}") + sub("states", "c"))
    client.expect_ok(2)


def test_identify_after_identify_and_before_sub_is_allowed(client: Client) -> None:
    client.send(identify(b"{}") * 3 + sub("states", "c"))
    client.expect_ok(4)
