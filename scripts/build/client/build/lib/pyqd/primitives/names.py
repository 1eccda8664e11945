"""Topic and channel names: the protocol's rule for valid names, and their directories on disk.

Names come from the wire as bytes and the rule counts bytes. A valid name is plain ASCII, so the str forms differ from
the bytes forms in type only. On disk every topic and channel directory has a suffix: the names "." and ".." are valid,
but mean something else to the file system. The suffix also distinguishes foreign directories.
"""

import functools
import re

NAME_SIZE_MAX = 64
# Most topics share a few channel names, and a start looks each of them up.
NAMES_KNOWN_MAX = 256
EPHEMERAL_SUFFIX = "#ephemeral"

_NAME = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")
_TOPIC_DIR_SUFFIX = ".topic"
_CHANNEL_DIR_SUFFIX = ".channel"


def is_valid_name(name: bytes) -> bool:
    """Return whether a name is valid for a topic or channel.

    The suffix #ephemeral counts towards the 64 bytes and is not a name by itself.
    """
    return len(name) <= NAME_SIZE_MAX and _NAME.fullmatch(name) is not None


def is_valid_name_str(name: str) -> bool:
    """Return whether text, for example from a URL or a file, is a valid name."""
    return name.isascii() and is_valid_name(name.encode("ascii"))


def is_ephemeral_str(name: str) -> bool:
    """Return whether a valid name stands for an ephemeral topic or channel."""
    return name.endswith(EPHEMERAL_SUFFIX)


def topic_dir(name: str) -> str:
    """Return the directory name of a topic. Raises: ValueError if the name is not valid."""
    return _dir_of(name, _TOPIC_DIR_SUFFIX)


@functools.lru_cache(NAMES_KNOWN_MAX)
def channel_dir(name: str) -> str:
    """Return the directory name of a channel. Raises: ValueError if the name is not valid."""
    return _dir_of(name, _CHANNEL_DIR_SUFFIX)


def topic_of_dir(entry: str) -> str | None:
    """Return the topic of a directory entry; None if the entry is not a topic's."""
    return _name_of(entry, _TOPIC_DIR_SUFFIX)


@functools.lru_cache(NAMES_KNOWN_MAX)
def channel_of_dir(entry: str) -> str | None:
    """Return the channel of a directory entry; None if the entry is not a channel's."""
    return _name_of(entry, _CHANNEL_DIR_SUFFIX)


def _dir_of(name: str, suffix: str) -> str:
    # The check keeps a "/" or a NUL out of every path that the daemon builds.
    if not is_valid_name_str(name):
        raise ValueError(f"not a valid topic or channel name: {name!r}")
    return name + suffix


def _name_of(entry: str, suffix: str) -> str | None:
    name = entry.removesuffix(suffix)
    if name == entry or not is_valid_name_str(name):
        return None
    return name
