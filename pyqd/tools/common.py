"""Frame of a command-line tool: flags that several tools share, usage errors, signals, log lines, standard output.

A tool declares its options as a dataclass on ToolOptions and the mixins here, and its `main` calls `run_tool`. A
mistake in the syntax of the flags exits with 2. Any other mistake is a Fatal: its text goes to standard error with date
and time, and the exit code is 1.

Source: docs/tools/README.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from pyqd import __version__
from pyqd.client.errors import ClientError
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.goflags import (
    DURATION,
    STRING,
    FlagType,
    declare_field,
    declared_flags,
    flag_name,
    parse_or_exit,
    unexpected,
)
from pyqd.primitives.loglines import CONTROLS, escape_control, local_time
from pyqd.primitives.machine import raise_descriptor_limit
from pyqd.primitives.nsq_compat import VERSIONS
from pyqd.primitives.program_start import STDOUT, begin_program, is_stdout_closed
from pyqd.tools.client_options import CLIENT_OPTION, ClientOptions

EXIT_OK: Final = 0
EXIT_FATAL: Final = 1
LEVEL_WORDS: Final = {10: "DBG", 20: "INF", 30: "WRN", 40: "ERR", 50: "ERR"}

T = TypeVar("T", bound="ToolOptions")


class Fatal(Exception):  # noqa: N818 - the word in the log of Go's tools
    """End of a tool because of a mistake or a failure; the text goes to standard error, and the exit code is 1."""


class StdoutClosedError(Exception):
    """The reader of standard output is gone."""


# Tools have no configuration file.
declare_flag: Final = partial(declare_field, key=None)


def declare_repeated(text: str, kind: FlagType = STRING) -> Any:
    return declare_flag((), text if "(may be" in text else f"{text} (may be given multiple times)", kind=kind)


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """Flags of every tool."""

    version: bool = declare_flag(False, "print version string")


@dataclass(frozen=True, kw_only=True)
class HttpTimeoutFlags:
    """Flags for the timeouts of HTTP requests, in ns."""

    http_client_connect_timeout_ns: int = declare_flag(2 * SECOND_NS, "timeout for HTTP connect", kind=DURATION)
    http_client_request_timeout_ns: int = declare_flag(5 * SECOND_NS, "timeout for HTTP request", kind=DURATION)


HTTP_TIMEOUTS: Final = ("http_client_connect_timeout_ns", "http_client_request_timeout_ns")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Flags for the brokers that a tool consumes from."""

    nsqd_tcp_address: tuple[str, ...] = declare_repeated("nsqd TCP address")
    lookupd_http_address: tuple[str, ...] = declare_repeated("lookupd HTTP address")
    consumer_opt: tuple[tuple[str, Any], ...] = declare_repeated(
        "option of the consumer, as name,value", kind=CLIENT_OPTION
    )


@dataclass(frozen=True, kw_only=True)
class ProducerOpt:
    """Flag for options of producers."""

    producer_opt: tuple[tuple[str, Any], ...] = declare_repeated(
        "option of the producer, as name,value", kind=CLIENT_OPTION
    )


def require_one_kind(
    nsqd: Sequence[str], lookupd: Sequence[str], nsqd_flag: str = "--nsqd-tcp-address", end: str = ""
) -> None:
    """Check that addresses of brokers or of lookup daemons are given, not both. end: of the errors. Raises: Fatal."""
    if not nsqd and not lookupd:
        raise Fatal(f"{nsqd_flag} or --lookupd-http-address required{end}")
    if nsqd and lookupd:
        raise Fatal(f"use {nsqd_flag} or --lookupd-http-address not both{end}")


def require_positive(options: object, *attributes: str) -> None:
    """Check that flags with numbers are above 0, if they are given. Raises: Fatal."""
    for attribute in attributes:
        value = getattr(options, attribute)
        if value is not None and value <= 0:
            raise Fatal(f"--{flag_name(attribute)} should be positive")


def user_agent(tool: str) -> str:
    return f"{tool}/{__version__} pyqd-client/{__version__}"


def client_options(tool: str, pairs: Sequence[tuple[str, Any]]) -> ClientOptions:
    """Return the values of --consumer-opt or --producer-opt. Raises: SettingError."""
    return ClientOptions.of(pairs, user_agent(tool))


# Command line.


def ignore_arguments(options_class: type[ToolOptions], argv: Sequence[str], arguments: Sequence[str]) -> None:
    """Warn of arguments after the flags, which Go's tools ignore without a word, and all flags behind them too."""
    text = unexpected(declared_flags(options_class), argv, arguments)
    log(f"WARNING: {text}; it is ignored, and so is the rest of the command line")


def refuse_arguments(_class: type[ToolOptions], _argv: Sequence[str], arguments: Sequence[str]) -> None:
    """Refuse arguments after the flags. Raises: Fatal."""
    raise Fatal(f"unknown arguments: [{' '.join(arguments)}]")


def parse_options(
    tool: str,
    options_class: type[T],
    argv: Sequence[str] | None,
    synopsis: str,
    on_arguments: Callable[[type[ToolOptions], Sequence[str], Sequence[str]], None] = ignore_arguments,
) -> T:
    """Return the options of a command line. Exits after --version, --help and a mistake in the syntax."""
    flags = declared_flags(options_class)
    given = list(sys.argv[1:] if argv is None else argv)
    parsed = parse_or_exit(tool, flags, given, synopsis, allows_arguments=True)
    if parsed.values.get("version"):
        print(f"{tool} {VERSIONS}", flush=True)
        sys.exit(EXIT_OK)
    if parsed.leftovers:
        on_arguments(options_class, given, parsed.leftovers)
    return options_class(**{flag.attribute: parsed.values[flag.name] for flag in flags if flag.name in parsed.values})


def run_tool(
    tool: str,
    options_class: type[T],
    argv: Sequence[str] | None,
    run: Callable[[T], Coroutine[Any, Any, int]],
    synopsis: str,
    on_arguments: Callable[[type[ToolOptions], Sequence[str], Sequence[str]], None] = ignore_arguments,
) -> int:
    """Parse the command line and run the tool in an event loop. Returns: the exit code.

    synopsis: the text before the flags in --help. on_arguments: handles arguments after the flags.
    """
    begin_program(tool)
    try:
        options = parse_options(tool, options_class, argv, synopsis, on_arguments)
        raise_descriptor_limit()
        log_client(logging.INFO)
        return asyncio.run(run(options))
    except (Fatal, ClientError) as error:
        log(str(error))
        return EXIT_FATAL
    except StdoutClosedError:
        return exit_by_sigpipe()
    except KeyboardInterrupt:
        # SIGINT before the tool handles signals.
        return 128 + signal.SIGINT


# Signals.


@contextlib.contextmanager
def stop_on(*numbers: signal.Signals, on_signal: Callable[[], None] | None = None) -> Iterator[asyncio.Event]:
    """Return a context whose event is set by the first of these signals. A second signal acts as if not handled.

    on_signal: called at the first signal, by the event loop. SIGHUP stays ignored if it is, as nohup(1) wants.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        numbers = tuple(number for number in numbers if number != signal.SIGHUP)

    def stop() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
        stopped.set()
        if on_signal is not None:
            on_signal()

    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield stopped
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


# Log lines.


def log(text: str) -> None:
    """Print a line with date and time on standard error, as Go's log package does."""
    print(f"{local_time(int(time.time()))} {CONTROLS.sub(escape_control, text)}", file=sys.stderr, flush=True)


class ClientLog(logging.Handler):
    """Handler for the log of pyqd.client, in the form of Go's client: date, time, level, text."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]!r}"
        log(f"{LEVEL_WORDS.get(record.levelno, record.levelname)} {text}")


def log_client(level: int) -> None:
    """Print the log of pyqd.client from a level on, such as logging.INFO. A second call replaces the first."""
    logger = logging.getLogger("pyqd.client")
    logger.handlers[:] = [ClientLog()]
    logger.propagate = False
    logger.setLevel(level)


# Standard output.


class Stdout:
    """Standard output without a buffer. A full pipe does not block the event loop. Raises: Fatal if it is closed."""

    def __init__(self) -> None:
        if is_stdout_closed():
            raise Fatal("cannot write to standard output: it is closed")
        mode = os.fstat(STDOUT).st_mode
        # A pipe that is ready takes so much without blocking.
        self._chunk_bytes = sys.maxsize if stat.S_ISREG(mode) else select.PIPE_BUF
        self._lock = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        """Write all bytes, behind those of earlier calls.

        Raises: StdoutClosedError if the reader is gone, which run_tool handles; Fatal for any other failure.
        """
        async with self._lock:
            view = memoryview(data)
            while view:
                await wait_writable(STDOUT)
                try:
                    view = view[os.write(STDOUT, view[: self._chunk_bytes]) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    raise StdoutClosedError from None
                except OSError as error:
                    raise Fatal(f"ERROR: failed to write to standard output - {error.strerror}") from error


async def wait_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if poll.poll(0):
        return
    loop = asyncio.get_running_loop()
    writable = loop.create_future()
    loop.add_writer(descriptor, set_done, writable)
    try:
        await writable
    finally:
        loop.remove_writer(descriptor)


def set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def exit_by_sigpipe() -> int:
    """End the process by SIGPIPE, as programs do whose reader has gone, such as `head`."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    return 128 + signal.SIGPIPE
