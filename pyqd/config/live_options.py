"""Options that can be changed while the daemon runs: their owner, and the parsers of their values.

A change lasts until the process ends; the next start takes the command line and the configuration file again.

Source: docs/nsq/http-api.md, "/config/:opt".
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, Protocol

from pyqd.config.options import FLAGS, Options
from pyqd.primitives.durations import parse_duration, parse_int
from pyqd.primitives.goflags import DURATION, INT, Flag
from pyqd.primitives.loglines import set_level
from pyqd.primitives.peer_json import json_text


def addresses_of(body: bytes) -> tuple[str, ...] | None:
    """Return the strings of a JSON array; None for null. Raises: ValueError."""
    try:
        found = json.loads(json_text(body))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if found is None:
        return None
    # As in Go, null leaves an element at its zero value, which is empty.
    if not isinstance(found, list) or not all(item is None or isinstance(item, str) for item in found):
        raise ValueError("not an array of strings")
    return tuple(item or "" for item in found)


def duration_of(body: bytes) -> int:
    """Return a duration in nanoseconds from a flag's form, or from the number that GET shows. Raises: ValueError."""
    text = body.decode()
    return int(text) if text.isascii() and text.isdigit() else parse_duration(text)


def parser_of(flag: Flag) -> Callable[[bytes], Any]:
    if flag.repeatable:
        return addresses_of
    if flag.type is DURATION:
        return duration_of
    # Not by the parser of INT, whose errors name the remedy of a command line.
    parse = parse_int if flag.type is INT else flag.type.parse
    return lambda body: parse(body.decode())


# By key. nsqd can change nsqlookupd_tcp_addresses and log_level.
PARSE_OF: dict[str, Callable[[bytes], Any]] = {
    flag.config_key: parser_of(flag) for flag in FLAGS if flag.live and flag.config_key is not None
}

FLAG_OF: dict[str, Flag] = {flag.config_key: flag for flag in FLAGS if flag.config_key is not None}


class OptionsOwner(Protocol):
    """Object that reads the options while it runs: the broker."""

    options: Options

    def change_options(self, options: Options, pause: Callable[[], None]) -> None:
        """Replace the options. pause: is called between slices of the work."""


class LiveOptions:
    """Options of a running broker. pause: yields to the event loop between slices of a change.

    listeners: called with all options at each change, before the broker is; they do not switch.
    """

    def __init__(self, broker: OptionsOwner, pause: Callable[[], None], *listeners: Callable[[Options], None]) -> None:
        self.broker = broker
        self.listeners = listeners
        self._pause = pause

    def value_of(self, key: str) -> Any:
        """Return an option's value. Raises: KeyError for an unknown key."""
        return getattr(self.broker.options, FLAG_OF[key].attribute)

    def change(self, key: str, body: bytes) -> None:
        """Change an option. Raises: KeyError if it cannot be changed, ValueError for a bad value. Switches: yes."""
        parse = PARSE_OF[key]
        flag = FLAG_OF[key]
        value = parse(body)
        flag.check(value)
        options = dataclasses.replace(self.broker.options, **{flag.attribute: value})
        set_level(options.log_level)
        for listener in self.listeners:
            listener(options)
        # Last: another change may come during a pause, and the listeners must not get older options after it.
        self.broker.change_options(options, self._pause)
