"""Names of topics and channels for the queues and exchanges of task libraries.

NSQ's names have at most 64 characters out of letters, digits and `.-_`. Task libraries use longer names and other
characters, such as Celery's `celery@host.celery.pidbox`. A name that NSQ accepts stays as it is. In any other name the
characters that NSQ does not know become `-`, and a hash of the whole name is appended, so that two queues never share a
topic.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

EPHEMERAL: Final = "#ephemeral"
# Leaves space for the suffix of ephemeral topics.
LENGTH_MAX: Final = 64 - len(EPHEMERAL)
HASH_BYTES: Final = 6
FOREIGN: Final = re.compile(r"[^.a-zA-Z0-9_-]")


def nsq_name(name: str, *, is_ephemeral: bool = False) -> str:
    """Return the topic or channel for the name of a queue or exchange. Always the same for the same name."""
    base = name.removesuffix(EPHEMERAL)
    suffix = EPHEMERAL if is_ephemeral or base != name else ""
    clean = FOREIGN.sub("-", base)
    if not base or clean != base or len(base) > LENGTH_MAX:
        digest = hashlib.blake2b(base.encode(), digest_size=HASH_BYTES).hexdigest()
        clean = f"{clean[: LENGTH_MAX - len(digest) - 1]}.{digest}"
    return clean + suffix
