"""Check of strace logs: whether an OK was sent before a flush of its record had returned, and the number of flushes.

The order of the lines is that of the events: strace stops a thread before a call is made and before the thread learns
its result. So a call that begins on a later line was made after a call that ended on an earlier line had returned. A
record is stored after its request was received and may be stored through a mapping, which no call shows. So for every
OK the trace must show a flush that began after the last byte of its request was received and that returned without an
error before the call that sent the OK began. An msync(2) of the same range as an earlier one does not count: new
records make a range longer, so that is the header of a file. All this is necessary, not sufficient: the trace does not
show which record a flush covered.
"""

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.server import RunError

FLUSHES = ("fsync", "fdatasync", "msync", "syncfs", "pwritev2", "io_submit", "sync_file_range", "io_uring_enter")
RECEIVES = ("recvfrom", "recvmsg", "read", "readv")
SENDS = ("sendto", "sendmsg", "write", "writev")
ENDED = "io_getevents"
PROVING = (*FLUSHES, *RECEIVES, *SENDS, "munmap", ENDED)
# They do not flush, or do not report it: they are counted and prove nothing.
NO_PROOF = ("sync_file_range", "io_uring_enter")
# These flush only with a flag.
WITH_FLAG = ("pwritev2", "io_submit")
RESULT = re.compile(r"\bres=(-?\d+)")
WRITTEN_THROUGH = re.compile(r"RWF_D?SYNC")
BEGUN = re.compile(r"^(\d+) +([\d.]+) (\w+)\((.*)$")
RESUMED = re.compile(r"^(\d+) +([\d.]+) <\.\.\. (\w+) resumed>(.*)$")
UNFINISHED = " <unfinished ...>"
RETURNED = re.compile(r"\) += (-?\d+|\?)[^=]*$")
# -xx prints the name of a descriptor in hexadecimal digits as well.
DESCRIPTOR = re.compile(r"^\d+<((?:\\x[0-9a-f]{2})+)>")
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
RANGE = re.compile(r"^(0x[0-9a-f]+), (\d+)")
# Bytes of a string that strace prints; an OK must not lie behind them.
STRING_BYTES = 65536
END_DEADLINE_S = 10.0
POLL_S = 0.02


def tracer(trace: Path) -> tuple[str, ...]:
    """Return the words before a command that trace all its threads; its process stays our child."""
    options = ("-D", "-f", "-ttt", "-y", "-xx", "--seccomp-bpf", "-s", str(STRING_BYTES))
    return ("strace", *options, "-o", str(trace), "-e", "trace=" + ",".join(PROVING), "--")


def read_trace(trace: Path, pid: int) -> list[str]:
    """Return the lines of a trace when it is complete: strace ends a little later than the process it followed."""
    end_s = time.monotonic() + END_DEADLINE_S
    while time.monotonic() < end_s:
        lines = trace.read_text().splitlines()
        if any(re.match(rf"{pid} +[\d.]+ \+\+\+ (exited|killed)", line) for line in lines[-50:]):
            return lines
        time.sleep(POLL_S)
    raise RunError(f"{trace} did not end within {END_DEADLINE_S} s of its process")


@dataclass
class Event:
    """Begin or end of a call. arguments: those seen so far. returned: None when it begins; -1 for errors."""

    line: int
    time: str
    thread: str
    call: str
    arguments: str
    returned: int | None = None


@dataclass
class Conversation:
    """Traffic of one connection. arrivals: for each request the line with its last received byte."""

    received_bytes: int = 0
    arrivals: list[tuple[int, str]] = field(default_factory=list)
    sent: bytes = b""
    answered: int = 0


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Yield begin and end of each call, in order; lines of signals and exits are left out."""
    open_calls: dict[str, Event] = {}
    for number, line in enumerate(lines, 1):
        begun, resumed = BEGUN.match(line), RESUMED.match(line)
        if begun:
            thread, at, call, rest = begun.groups()
            event = Event(number, at, thread, call, rest.removesuffix(UNFINISHED))
            yield event
            if rest.endswith(UNFINISHED):
                open_calls[thread] = event
                continue
        elif resumed:
            thread, at, call, rest = resumed.groups()
            if thread not in open_calls:
                raise RunError(f"line {number}: no begin of this call: {line[:200]}")
            event = open_calls.pop(thread)
        else:
            continue
        returned = RETURNED.search(rest)
        if returned is None:
            raise RunError(f"line {number}: no call that strace prints: {line[:200]}")
        value = -1 if returned[1] == "?" else int(returned[1])
        yield Event(number, at, thread, call, event.arguments + (rest if resumed else ""), value)


def socket_of(event: Event) -> str:
    """Return the socket that a call is about, "" for another file."""
    named = DESCRIPTOR.match(event.arguments)
    name = unescaped(named[1]).decode(errors="replace") if named else ""
    return name if name.startswith("socket:") else ""


def unescaped(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def is_flush(event: Event) -> bool:
    return event.call in FLUSHES and (event.call not in WITH_FLAG or bool(WRITTEN_THROUGH.search(event.arguments)))


def range_of(event: Event) -> tuple[int, int] | None:
    """Return address and bytes of the memory that a call is about."""
    found = RANGE.match(event.arguments)
    return (int(found[1], 16), int(found[2])) if found else None


def sent_bytes(event: Event) -> bytes:
    """Return the bytes that a call sent. Raises: RunError if strace has truncated them."""
    pieces = STRING.findall(event.arguments)
    if any(cut for _, cut in pieces):
        raise RunError(f"line {event.line}: a string is cut off")
    return unescaped("".join(piece for piece, _ in pieces))[: event.returned]


@dataclass
class Proof:
    """Reads a trace. request_bytes: of each request that has an answer. hello_bytes: of a connection before them.

    answer: a regular expression of an answer that says OK. proven: OKs that a flush preceded as it should. early: the
    others, in words.
    """

    answer: bytes
    request_bytes: int
    hello_bytes: int
    proven: int = 0
    early: list[str] = field(default_factory=list)
    # Line on which the latest successful flush began.
    covered: int = 0
    begun: dict[str, int] = field(default_factory=dict)
    covered_at_send: dict[str, int] = field(default_factory=dict)
    # Lines of the beginnings of io_submit(2) writes whose ends have not been seen.
    submitted: list[int] = field(default_factory=list)
    last_failure: str = ""
    # Address and bytes of the mapped ranges that msync(2) has flushed.
    ranges: set[tuple[int, int]] = field(default_factory=set)
    conversations: dict[str, Conversation] = field(default_factory=dict)

    def read(self, lines: Iterable[str]) -> "Proof":
        """Read a trace. Returns: this proof. Raises: RunError."""
        for event in events(lines):
            if event.call == ENDED:
                self.end_submitted(event)
            elif is_flush(event) or event.call in WITH_FLAG:
                self.flush(event)
            elif event.call == "munmap" and event.returned == 0:
                self.unmap(event)
            elif event.call in RECEIVES + SENDS and (socket := socket_of(event)):
                conversation = self.conversations.setdefault(socket, Conversation())
                (self.receive if event.call in RECEIVES else self.send)(event, conversation)
        return self

    def flush(self, event: Event) -> None:
        if event.returned is None:
            self.begun[event.thread] = event.line
        elif event.call in NO_PROOF or not is_flush(event):
            return
        elif event.call == "io_submit":
            self.submitted += [self.begun[event.thread]] * max(event.returned, 0)
        elif event.returned < 0:
            self.last_failure = f"; {event.call} on line {event.line} failed"
        elif self.is_new(event):
            self.covered = max(self.covered, self.begun[event.thread])
            self.last_failure = ""

    def end_submitted(self, event: Event) -> None:
        """Record the ended writes. The trace does not show which of several ended: the first one to begin counts."""
        for result in RESULT.findall(event.arguments) if event.returned else ():
            if not self.submitted:
                raise RunError(f"line {event.line}: the trace does not show where this write began")
            began = self.submitted.pop(0)
            if int(result) < 0:
                self.last_failure = f"; the write whose end is on line {event.line} failed"
            else:
                self.covered = max(self.covered, began)
                self.last_failure = ""

    def is_new(self, event: Event) -> bool:
        """Return whether a flush is not an msync(2) of a range that was flushed before."""
        flushed = range_of(event) if event.call == "msync" else None
        known = flushed in self.ranges
        if flushed:
            self.ranges.add(flushed)
        return not known

    def unmap(self, event: Event) -> None:
        """Drop ranges whose addresses may belong to another file from now on."""
        if gone := range_of(event):
            self.ranges = {each for each in self.ranges if not gone[0] <= each[0] < sum(gone)}

    def receive(self, event: Event, conversation: Conversation) -> None:
        conversation.received_bytes += max(event.returned or 0, 0)
        whole = (conversation.received_bytes - self.hello_bytes) // self.request_bytes
        while len(conversation.arrivals) < whole:
            conversation.arrivals.append((event.line, event.time))

    def send(self, event: Event, conversation: Conversation) -> None:
        if event.returned is None:
            self.covered_at_send[event.thread] = self.covered
            return
        if event.returned < 0:
            return
        conversation.sent += sent_bytes(event)
        end = 0
        for found in re.finditer(self.answer, conversation.sent):
            end = found.end()
            self.judge(event, conversation)
        conversation.sent = conversation.sent[end:]

    def judge(self, event: Event, conversation: Conversation) -> None:
        """Check whether the next OK of a connection was sent in time; the call that ends on this line sends it."""
        conversation.answered += 1
        text = f"OK {conversation.answered} at {event.time} (line {event.line} of the trace) "
        if conversation.answered > len(conversation.arrivals):
            self.early.append(text + "answers a request that had not been received whole")
            return
        line, received = conversation.arrivals[conversation.answered - 1]
        if line < self.covered_at_send[event.thread]:
            self.proven += 1
            return
        text += "was sent although no flush begun after its request was received "
        self.early.append(text + f"(line {line}, {received}) had returned{self.last_failure}")


def count_flushes(lines: Iterable[str], begin_s: float, end_s: float) -> int:
    """Return how many flush calls began between two times since 1970."""
    return sum(
        event.returned is None and is_flush(event) and begin_s <= float(event.time) <= end_s for event in events(lines)
    )
