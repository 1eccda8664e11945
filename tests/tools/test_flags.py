"""Flags of NSQ's tools: each tool that takes the place of one has them all, with their kinds and defaults."""

from __future__ import annotations

import re

import pytest

from tests.support.tools import ORIGINALS

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

# Default of each flag as --help shows it; True for a flag without a value.
Flags = dict[str, str | bool]
CONSUMER: Flags = {"nsqd-tcp-address": "", "lookupd-http-address": "", "consumer-opt": "", "version": True}
TIMEOUTS: Flags = {"http-client-connect-timeout": "2s", "http-client-request-timeout": "5s"}
FLAGS: dict[str, Flags] = {
    "pyq_tail": CONSUMER | {"topic": "", "channel": "", "max-in-flight": "200", "n": "", "print-topic": True},
    "pyq_stat": TIMEOUTS
    | {
        "topic": "",
        "channel": "",
        "interval": "2s",
        "count": "",
        "nsqd-http-address": "",
        "lookupd-http-address": "",
        "version": True,
    },
    "pyq_to_file": CONSUMER
    | TIMEOUTS
    | {
        "topic": "",
        "topic-pattern": "",
        "topic-refresh": "1m0s",
        "channel": '"nsq_to_file"',
        "max-in-flight": "200",
        "output-dir": '"/tmp"',
        "work-dir": "",
        "datetime-format": '"%Y-%m-%d_%H"',
        "filename-format": '"<TOPIC>.<HOST><REV>.<DATETIME>.log"',
        "host-identifier": "",
        "gzip": True,
        "gzip-level": "6",
        "skip-empty-files": True,
        "rotate-size": "",
        "rotate-interval": "",
        "sync-interval": "30s",
        "log-level": '"info"',
        "log-prefix": '"[pyq_to_file] "',
    },
    "pyq_to_http": CONSUMER
    | {
        "topic": "",
        "channel": '"nsq_to_http"',
        "max-in-flight": "200",
        "post": "",
        "get": "",
        "header": "",
        "content-type": '"application/octet-stream"',
        "mode": '"hostpool"',
        "sample": "1",
        "n": "100",
        "http-client-connect-timeout": "2s",
        "http-client-request-timeout": "20s",
        "status-every": "250",
    },
    "pyq_to_nsq": CONSUMER
    | {
        "topic": "",
        "channel": '"nsq_to_nsq"',
        "destination-nsqd-tcp-address": "",
        "destination-topic": "",
        "producer-opt": "",
        "max-in-flight": "200",
        "mode": '"hostpool"',
        "require-json-field": "",
        "require-json-value": "",
        "whitelist-json-field": "",
        "status-every": "250",
    },
    "to_pyq": {"topic": "", "nsqd-tcp-address": "", "producer-opt": "", "delimiter": r'"\n"', "rate": ""},
}
# Where --help of the original shows something else: its own name, and words in place of a default.
OF_ORIGINALS = {
    "pyq_to_file": {"log-prefix": '"[nsq_to_file] "'},
    "pyq_to_nsq": {"destination-topic": "is consumed topic name"},
}
# Only ours have these.
ADDED = {
    "pyq_tail": {"color", "topic-pattern", "topic-refresh"},
    "pyq_to_file": {"parquet", "zstd", "zstd-level"},
    "pyq_to_http": {"retries", "retry-delay"},
    "to_pyq": {"version"},
}
FLAG = re.compile(r"^  --?(\S+)(?: (\S+))?(?:\t(.*))?$")
DEFAULT = re.compile(r"\(default (.*)\)$")


def flags_in(text: str) -> dict[str, str | bool]:
    """Return the flags of --help with their defaults; True for a flag without a value."""
    found: dict[str, str | bool] = {}
    name = ""
    words = ""
    for line in [*text.splitlines(), "  --end"]:
        match = FLAG.match(line)
        if match is None:
            words += f" {line.strip()}"
            continue
        if name and not isinstance(found[name], bool):
            default = DEFAULT.search(words)
            found[name] = default[1] if default else ""
        name, words = match[1], match[3] or ""
        found[name] = "" if match[2] else True
    del found["end"]
    return found


@pytest.mark.parametrize("tool", ORIGINALS)
def test_each_flag_has_the_default_of_the_original(run, tools, tool) -> None:
    result = run(tool, "--help")
    assert result.code == 0
    # Go's package prints --help on standard error.
    found = flags_in(result.err if tools.are_originals else result.out.decode())
    if tools.are_originals:
        assert found == FLAGS[tool] | OF_ORIGINALS.get(tool, {})
    else:
        assert {name: found[name] for name in FLAGS[tool]} == FLAGS[tool]
        assert found.keys() - FLAGS[tool].keys() == ADDED.get(tool, set())
