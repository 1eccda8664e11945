"""Topic and channel names: the rule of the protocol, and their directories on disk.

Names come from the wire as bytes and the rule counts bytes. A valid name is plain ASCII, so the str forms differ from
the bytes forms in type alone. On disk every topic and channel directory carries a suffix of its own: the names "." and
".." are valid and would otherwise mean something else to the file system, and a foreign directory is told apart by its
name.
"""

import functools
import re

NAME_SIZE_MAX = 64
# Most topics have channels of the same few names, and a start asks for each.
NAMES_KNOWN_MAX = 256
EPHEMERAL_SUFFIX = "#ephemeral"

_NAME = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")
_TOPIC_DIR_SUFFIX = ".topic"
_CHANNEL_DIR_SUFFIX = ".channel"


def is_valid_name(name: bytes) -> bool:
    """Tell whether name may name a topic or a channel.

    The suffix #ephemeral counts towards the 64 bytes and is no name by itself.
    """
    return len(name) <= NAME_SIZE_MAX and _NAME.fullmatch(name) is not None


def is_valid_name_str(name: str) -> bool:
    """Tell whether text, for example from a URL or a file, is a valid name."""
    return name.isascii() and is_valid_name(name.encode("ascii"))


def is_ephemeral_str(name: str) -> bool:
    """Tell whether a valid name asks for a topic or channel that is not kept."""
    return name.endswith(EPHEMERAL_SUFFIX)


def topic_dir(name: str) -> str:
    """Return the directory name of a topic. Raises: ValueError if the name is not valid."""
    return _dir_of(name, _TOPIC_DIR_SUFFIX)


@functools.lru_cache(NAMES_KNOWN_MAX)
def channel_dir(name: str) -> str:
    """Return the directory name of a channel. Raises: ValueError if the name is not valid."""
    return _dir_of(name, _CHANNEL_DIR_SUFFIX)


def topic_of_dir(entry: str) -> str | None:
    """Return the topic a directory entry stands for, None if it is not a topic's."""
    return _name_of(entry, _TOPIC_DIR_SUFFIX)


@functools.lru_cache(NAMES_KNOWN_MAX)
def channel_of_dir(entry: str) -> str | None:
    """Return the channel a directory entry stands for, None if it is not a channel's."""
    return _name_of(entry, _CHANNEL_DIR_SUFFIX)


def _dir_of(name: str, suffix: str) -> str:
    # The check keeps a "/" or a NUL out of every path the daemon builds, whoever calls.
    if not is_valid_name_str(name):
        raise ValueError(f"not a valid topic or channel name: {name!r}")
    return name + suffix


def _name_of(entry: str, suffix: str) -> str | None:
    name = entry.removesuffix(suffix)
    if name == entry or not is_valid_name_str(name):
        return None
    return name
