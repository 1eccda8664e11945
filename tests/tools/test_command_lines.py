"""Command lines of the tools: mistakes and exit codes, with the words of NSQ's tools."""

from __future__ import annotations

import re

import pytest

from tests.support.server import free_port

# Each test takes long, by the programs that it starts.
pytestmark = pytest.mark.slow

NSQD = "--nsqd-tcp-address=127.0.0.1:1"
LOOKUPD = "--lookupd-http-address=127.0.0.1:1"
STAT_NSQD = "--nsqd-http-address=127.0.0.1:1"
NAMES = ("--topic=t", "--channel=c")
POST = "--post=http://127.0.0.1:1/"
GET = "--get=http://127.0.0.1:1/%s"
DESTINATION = "--destination-nsqd-tcp-address=127.0.0.1:1"

MISTAKES: dict[str, list[tuple[tuple[str, ...], str]]] = {
    "pyq_tail": [
        (("--topic=t",), "--nsqd-tcp-address or --lookupd-http-address required"),
        (("--topic=t", NSQD, LOOKUPD), "use --nsqd-tcp-address or --lookupd-http-address not both"),
        ((NSQD,), "--topic required"),
    ],
    "pyq_stat": [
        ((STAT_NSQD,), "--topic and --channel are required"),
        (("--topic=t", STAT_NSQD), "--topic and --channel are required"),
        ((*NAMES, "--interval=0s", STAT_NSQD), "--interval should be positive"),
        ((*NAMES, "--count=0", STAT_NSQD), "--count should be positive"),
        ((*NAMES, "--http-client-connect-timeout=0s", STAT_NSQD), "--http-client-connect-timeout should be positive"),
        ((*NAMES, "--http-client-request-timeout=-1s", STAT_NSQD), "--http-client-request-timeout should be positive"),
        (NAMES, "--nsqd-http-address or --lookupd-http-address required"),
        ((*NAMES, STAT_NSQD, LOOKUPD), "use --nsqd-http-address or --lookupd-http-address not both"),
        (
            (*NAMES, "--nsqd-http-address=http://127.0.0.1:1"),
            "--nsqd-http-address error - address should not contain scheme",
        ),
        (
            (*NAMES, "--lookupd-http-address=https://127.0.0.1:1"),
            "--lookupd-http-address error - address should not contain scheme",
        ),
    ],
    "pyq_to_file": [
        (("--topic=t", "x", "y"), "unknown arguments: [x y]"),
        (("--topic=t", "--log-level=loud", NSQD), "--log-level is invalid"),
        (("--topic=t", "--channel=", NSQD), "--channel is required"),
        (
            ("--topic=t", NSQD, "--http-client-connect-timeout=0"),
            "--http-client-connect-timeout should be positive",
        ),
        (("--topic=t",), "--nsqd-tcp-address or --lookupd-http-address required."),
        (("--topic=t", NSQD, LOOKUPD), "use --nsqd-tcp-address or --lookupd-http-address not both"),
        (("--topic=t", NSQD, "--gzip-level=0"), "invalid --gzip-level value (0), should be 1-9"),
        ((NSQD,), "--topic or --topic-pattern required"),
        ((NSQD, "--topic-pattern=."), "--lookupd-http-address must be specified when no --topic specified"),
    ],
    "pyq_to_http": [
        ((NSQD, POST), "--topic and --channel are required"),
        (("--topic=t", "--channel=", NSQD, POST), "--topic and --channel are required"),
        (("--topic=t", NSQD, POST, "--header=no"), "--header value format should be 'key=value'"),
        (("--topic=t", NSQD, POST, "--header=X:"), "--header value format should be 'key=value'"),
        (("--topic=t", NSQD, GET, "--content-type=a/b"), "--content-type only used with --post"),
        (("--topic=t", NSQD, POST, "--content-type="), "--content-type requires a value when used"),
        (("--topic=t", POST), "--nsqd-tcp-address or --lookupd-http-address required"),
        (("--topic=t", NSQD, LOOKUPD), "use --nsqd-tcp-address or --lookupd-http-address not both"),
        (("--topic=t", NSQD), "--get or --post required"),
        (("--topic=t", NSQD, GET, POST), "use --get or --post not both"),
        (("--topic=t", NSQD, "--get=http://h/"), "invalid GET address - must be a printf string"),
        (("--topic=t", NSQD, POST, "--sample=1.5"), "ERROR: --sample must be between 0.0 and 1.0"),
    ],
    "pyq_to_nsq": [
        ((NSQD, DESTINATION), "--topic and --channel are required"),
        (("--topic=t", "--channel=", NSQD, DESTINATION), "--topic and --channel are required"),
        (("--topic=bad topic", NSQD, DESTINATION), "--topic is invalid"),
        (("--topic=t", "--destination-topic=a b", NSQD, DESTINATION), "--destination-topic is invalid"),
        (("--topic=t", "--channel=a b", NSQD, DESTINATION), "--channel is invalid"),
        (("--topic=t", DESTINATION), "--nsqd-tcp-address or --lookupd-http-address required"),
        (("--topic=t", NSQD, LOOKUPD), "use --nsqd-tcp-address or --lookupd-http-address not both"),
        (("--topic=t", NSQD), "--destination-nsqd-tcp-address required"),
    ],
    "to_pyq": [
        ((NSQD,), "--topic required"),
        (("--topic=t", "--delimiter=ab", NSQD), "--delimiter must be a single byte"),
        (("--topic=t", "--delimiter=", NSQD), "--delimiter must be a single byte"),
        (("--topic=t", "--delimiter=ä", NSQD), "--delimiter must be a single byte"),
        (("--topic=t",), "--nsqd-tcp-address required"),
    ],
}
MISTAKES_OF_SYNTAX: dict[str, list[tuple[tuple[str, ...], str]]] = {
    "pyq_tail": [
        (("--bogus",), "flag provided but not defined: -bogus"),
        (("-n", "x"), 'invalid value "x" for flag -n: '),
        (("--print-topic=x",), 'invalid boolean value "x" for -print-topic: '),
        (("--consumer-opt=sample_rate,100",), "invalid sample_rate ! 100 > 99"),
    ],
    "pyq_to_file": [
        (("--bogus",), "flag provided but not defined: -bogus"),
        (("--gzip=x",), 'invalid boolean value "x" for -gzip: '),
    ],
    "to_pyq": [
        (("--bogus",), "flag provided but not defined: -bogus"),
        (("--rate=x",), 'invalid value "x" for flag -rate: '),
        (("--topic",), "flag needs an argument: -topic"),
        (("--producer-opt=bogus,1",), 'invalid value "bogus,1" for flag -producer-opt: invalid option bogus'),
        (("--producer-opt=deflate_level,0",), "invalid deflate_level ! 0 < 1"),
    ],
    "pyq_to_http": [(("--sample=x",), 'invalid value "x" for flag -sample: parse error')],
    "pyq_to_nsq": [(("--status-every=x",), 'invalid value "x" for flag -status-every: ')],
    "pyq_stat": [
        (("--count=x",), 'invalid value "x" for flag -count: '),
        (("--interval=1",), 'invalid value "1" for flag -interval: '),
        (("--bogus",), "flag provided but not defined: -bogus"),
    ],
}


@pytest.mark.parametrize(
    ("tool", "arguments", "mistake"), [(tool, *each) for tool, found in MISTAKES.items() for each in found]
)
def test_a_mistake_in_the_options_is_named_and_exits_with_1(run, tool, arguments, mistake) -> None:
    result = run(tool, *arguments)
    assert (result.code, result.mistake(), result.out) == (1, mistake, b"")


@pytest.mark.parametrize(
    ("tool", "arguments", "mistake"), [(tool, *each) for tool, found in MISTAKES_OF_SYNTAX.items() for each in found]
)
def test_a_mistake_in_the_syntax_exits_with_2(run, tool, arguments, mistake) -> None:
    result = run(tool, *arguments)
    assert result.code == 2
    assert mistake in result.err


# Of to_nsq there is none.
@pytest.mark.parametrize("tool", [tool for tool in MISTAKES if tool != "to_pyq"])
def test_it_prints_its_version(run, tool) -> None:
    result = run(tool, "--version")
    assert result.code == 0
    assert re.fullmatch(rf"(pyq|nsq)_{tool.removeprefix('pyq_')} v[0-9.]+( \(NSQ v[0-9.]+\))?\n", result.out.decode())


@pytest.mark.parametrize(
    ("tool", "more"), [("pyq_tail", ()), ("pyq_to_http", (POST,)), ("pyq_to_nsq", (DESTINATION,)), ("to_pyq", ())]
)
def test_a_broker_that_cannot_be_reached_ends_it_with_1(run, topic, tool, more) -> None:
    port = free_port()
    result = run(tool, f"--topic={topic}", f"--nsqd-tcp-address=127.0.0.1:{port}", *more, stdin=b"one\n")
    assert result.code == 1
    assert f"127.0.0.1:{port}" in result.mistake()
