"""Proofs from traces: early OKs that were planted are reported, and nothing else."""

import re

import pytest

from bench.brokers import Beanstalk, Nats, Nsq, Redis
from bench.flush_proof import Proof, count_flushes
from bench.server import RunError

REQUEST_BYTES = 10
HELLO_BYTES = 4
OK = b"\0\0\0\x06\0\0\0\0OK"


def escaped(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def descriptor(number: int = 8) -> str:
    return f"{number}<{escaped(b'socket:[%d]' % (100 + number))}>"


def receive(size: int, socket: int = 8) -> str:
    return f'1 10.5 recvfrom({descriptor(socket)}, "{escaped(b"x" * size)}", 4096, 0, NULL, NULL) = {size}'


def send(data: bytes = OK, socket: int = 8) -> str:
    return f'1 11.5 sendto({descriptor(socket)}, "{escaped(data)}", {len(data)}, MSG_DONTWAIT, NULL, 0) = {len(data)}'


HELLO = receive(HELLO_BYTES)
PUBLISH = receive(REQUEST_BYTES)
FLUSH = "2 11.0 msync(0x7f0000000000, 4096, MS_SYNC) = 0"
FLUSH_BEGINS = "2 11.0 msync(0x7f0000000000, 4096, MS_SYNC <unfinished ...>"
FLUSH_RETURNS = "2 11.2 <... msync resumed>) = 0"
SUBMIT = '1 11.0 io_submit(0x7f0000000000, 1, [{aio_rw_flags=RWF_DSYNC|RWF_NOWAIT, aio_buf=""}]) = 1'
ENDED = "1 11.2 io_getevents(0x7f0000000000, 0, 1, [{data=0, obj=0x7f, res=4096, res2=0}], NULL) = 1"
NOT_ENDED = "1 11.2 io_getevents(0x7f0000000000, 0, 1, [], NULL) = 0"
FAILED = "2 11.0 msync(0x7f0000000000, 4096, MS_SYNC) = -1 EIO (Input/output error)"


def judged(*lines: str, answer: bytes = Nsq.answer) -> tuple[int, list[str]]:
    """Return the number of proven OKs, and the early ones."""
    proof = Proof(answer=answer, request_bytes=REQUEST_BYTES, hello_bytes=HELLO_BYTES).read(lines)
    return proof.proven, proof.early


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([HELLO, PUBLISH, FLUSH, send()], id="in order"),
        pytest.param([HELLO, PUBLISH, FLUSH_BEGINS, FLUSH_RETURNS, send()], id="in a thread"),
        pytest.param([HELLO, PUBLISH, FAILED, FLUSH, send()], id="again after a failure"),
        pytest.param([receive(HELLO_BYTES + 4), receive(6), FLUSH, send()], id="received in pieces"),
        pytest.param([HELLO, PUBLISH, FLUSH, send(OK[:3]), send(OK[3:])], id="sent in pieces"),
        pytest.param([HELLO, PUBLISH, "1 11.0 fdatasync(7) = 0", send()], id="fdatasync"),
        pytest.param([HELLO, PUBLISH, "1 11.0 pwritev2(7, [], 1, 0, RWF_DSYNC) = 10", send()], id="written through"),
        pytest.param([HELLO, PUBLISH, SUBMIT, NOT_ENDED, ENDED, send()], id="submitted"),
        pytest.param(
            [HELLO, PUBLISH, FLUSH, "1 1.0 --- SIGTERM {} ---", send(), "1 12.0 +++ exited with 0 +++"], id="end"
        ),
    ],
)
def test_an_ok_after_a_flush_is_proven(lines: list[str]) -> None:
    assert judged(*lines) == (1, [])


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        pytest.param([HELLO, PUBLISH, send(), FLUSH], "no flush begun after its request", id="sent before the flush"),
        pytest.param([HELLO, FLUSH, PUBLISH, send()], "no flush begun after its request", id="flushed before"),
        pytest.param(
            [HELLO, FLUSH_BEGINS, PUBLISH, FLUSH_RETURNS, send()], "no flush begun after", id="begun before the receive"
        ),
        pytest.param([HELLO, PUBLISH, FLUSH_BEGINS, send(), FLUSH_RETURNS], "no flush begun after", id="not returned"),
        pytest.param([HELLO, PUBLISH, FAILED, send()], "msync on line 3 failed", id="failed"),
        pytest.param([receive(HELLO_BYTES + 9), FLUSH, receive(1), send()], "no flush", id="last byte after the flush"),
        pytest.param([HELLO, send()], "had not been received whole", id="never asked"),
        pytest.param([HELLO, PUBLISH, "1 11.0 pwritev2(7, [], 1, 0, 0) = 10", send()], "no flush", id="only written"),
        pytest.param([HELLO, PUBLISH, "1 11.0 sync_file_range(7, 0, 0, 2) = 0", send()], "no flush", id="not flushed"),
        pytest.param([HELLO, PUBLISH, SUBMIT, NOT_ENDED, send()], "no flush", id="submitted and not ended"),
        pytest.param([HELLO, SUBMIT, PUBLISH, ENDED, send()], "no flush", id="submitted before the receive"),
        pytest.param(
            [HELLO, PUBLISH, SUBMIT.replace("RWF_DSYNC|", ""), send()], "no flush", id="submitted without a flush"
        ),
        pytest.param(
            [HELLO, PUBLISH, SUBMIT, ENDED.replace("=4096", "=-5"), send()], "on line 4 failed", id="failed at its end"
        ),
    ],
)
def test_an_early_ok_is_reported(lines: list[str], text: str) -> None:
    proven, [early] = judged(*lines)
    assert proven == 0
    assert text in early
    line = re.search(r"line (\d+) of the trace", early)
    assert line is not None
    assert "sendto" in lines[int(line[1]) - 1]


HEADER = "2 11.0 msync(0x7f0000000000, 4096, MS_SYNC) = 0"


def records(size: int) -> str:
    return f"2 11.1 msync(0x7f0000001000, {size}, MS_SYNC) = 0"


def test_a_range_that_was_flushed_before_proves_nothing() -> None:
    first = [HELLO, PUBLISH, HEADER, records(240), send(), PUBLISH, HEADER]
    assert judged(*first, records(480), send()) == (2, [])
    proven, early = judged(*first, send(), records(480))
    assert (proven, len(early)) == (1, 1)


def test_a_range_of_another_file_may_have_the_same_address() -> None:
    unmapped = "1 11.2 munmap(0x7f0000000000, 8388608) = 0"
    lines = [HELLO, PUBLISH, records(240), send(), unmapped, PUBLISH, records(240), send()]
    assert judged(*lines) == (2, [])
    lines[4] = "1 11.2 munmap(0x7f0000002000, 4096) = 0"
    assert judged(*lines)[0] == 1


def test_a_send_counts_from_its_begin() -> None:
    begins, returns = send().split(", 10, MSG", 1)[0] + ", 10 <unfinished ...>", "1 11.9 <... sendto resumed>) = 10"
    proven, early = judged(HELLO, PUBLISH, begins, FLUSH, returns)
    assert (proven, len(early)) == (0, 1)


def test_only_the_early_one_of_several_is_reported() -> None:
    two = receive(2 * REQUEST_BYTES)
    proven, [early] = judged(HELLO, two, FLUSH, PUBLISH, send(OK * 3))
    assert proven == 2
    assert early.startswith("OK 3 ")


def test_connections_are_looked_at_apart() -> None:
    other = receive(HELLO_BYTES + REQUEST_BYTES, 9)
    proven, early = judged(HELLO, PUBLISH, FLUSH, other, send(), send(OK, 9))
    assert (proven, len(early)) == (1, 1)


@pytest.mark.parametrize(
    ("answer", "sent"),
    [
        (Redis.answer, b"$15\r\n1700000000000-0\r\n"),
        (Beanstalk.answer, b"USING t001\r\nINSERTED 17\r\n"),
        (Nats.answer, b'MSG inbox00001 1 26\r\n{"stream":"t000","seq":17}\r\n'),
    ],
)
def test_answers_of_other_protocols_are_known(answer: bytes, sent: bytes) -> None:
    assert judged(HELLO, PUBLISH, FLUSH, send(sent), answer=answer) == (1, [])
    proven, early = judged(HELLO, PUBLISH, send(sent + sent), FLUSH, answer=answer)
    assert (proven, len(early)) == (0, 2)


def test_an_error_does_not_count_as_an_answer() -> None:
    error = b'MSG inbox00001 1 30\r\n{"error":{"code":503}}\r\n'
    assert judged(HELLO, PUBLISH, send(error), answer=Nats.answer) == (0, [])


def test_files_are_no_connections() -> None:
    written = f'1 11.0 write(5<{escaped(b"/data/log")}>, "{escaped(OK)}", 10) = 10'
    assert judged(HELLO, PUBLISH, written) == (0, [])


@pytest.mark.parametrize(
    "line",
    [
        f'1 11.5 sendto({descriptor()}, "{escaped(OK)}"..., 100, 0, NULL, 0) = 100',
        "1 11.5 msync(0x7f0000000000, 4096",
        "1 11.5 <... msync resumed>) = 0",
    ],
)
def test_a_trace_that_is_not_whole_proves_nothing(line: str) -> None:
    with pytest.raises(RunError, match="line 3"):
        judged(HELLO, PUBLISH, line)


def test_flushes_are_counted_in_a_time() -> None:
    lines = [FLUSH, FAILED, FLUSH_BEGINS, FLUSH_RETURNS, "1 11.0 pwritev2(7, [], 1, 0, 0) = 10", "1 12.0 fsync(3) = 0"]
    assert count_flushes(lines, 10.9, 11.1) == 3
    assert count_flushes(lines, 11.5, 13.0) == 1
