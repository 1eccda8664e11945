"""Sentences for the error codes of the HTTP APIs of brokers and lookup daemons.

Source: docs/nsq/http-api.md, docs/http.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

# For any code of the status 401 or 403.
REFUSED: Final = "is the token right, and has it the right to do this?"
SENTENCES: Final = {
    "TOPIC_NOT_FOUND": "topic {topic} does not exist",
    "CHANNEL_NOT_FOUND": "topic {topic} has no channel {channel}",
    "MESSAGE_NOT_FOUND": "no message {id} waits in topic {topic}: it is finished, or was never there",
    "MISSING_ARG_DEAD_LETTER_TOPIC": "a limit of attempts needs a dead-letter topic: give both",
    "MISSING_ARG_MAX_ATTEMPTS": "a dead-letter topic needs a limit of attempts: give both",
    "MISSING_ARG_RATE": "no limit is given, or a burst without a rate",
    "INVALID_DEAD_LETTER_TOPIC": "the dead-letter topic must be another topic with a valid name, and not ephemeral",
    "MSG_TOO_BIG": "the message is larger than the broker's --max-msg-size",
    "BODY_TOO_BIG": "the request is larger than the broker's --max-body-size",
    "MSG_EMPTY": "a message has at least one byte",
    "INVALID_DEFER": "the delay is no number, or longer than the broker's --max-defer",
    "INVALID_DUE": "the due time is no time, or further ahead than the broker's --max-defer",
    "POSITION_GONE": "topic {topic} does not keep this position any more: its messages are removed",
    "POSITION_BEYOND_END": "topic {topic} has not reached this position yet",
    "TOO_MANY_TOPICS": "the broker has as many topics as its --max-topics allows",
    "TOO_MANY_CHANNELS": "topic {topic} has as many channels as --max-channels-per-topic allows",
    "EXITING": "the broker is stopping",
    "INTERNAL_ERROR": "the broker has had an internal error; its log tells the reason",
}
_PARAMETER: Final = re.compile(r"(MISSING|INVALID)_(?:ARG_)?([A-Z_]+)", re.ASCII)


def sentence_for(code: str, query: Mapping[str, object]) -> str | None:
    """Return a sentence for an error code, with the values of the request; None if the code has none."""
    text = SENTENCES.get(code)
    if text is not None:
        return text.format_map(defaultdict(lambda: "?", query))
    found = _PARAMETER.fullmatch(code)
    if found is None:
        return None
    name = found[2].lower()
    if found[1] == "MISSING":
        return f"the parameter {name} is missing"
    return f"{query[name]!r} is not valid as {name}" if name in query else f"the parameter {name} is not valid"
