"""Rights over HTTP, and the file of --http-auth-token-file that grants them: one line for each token.

    # token, or sha256: and its digest    rights            topics
    <token>                               publish           orders_*
    sha256:<digest>                       publish,consume
    anonymous                             status

Topics are given by a shell pattern for the whole name; without a pattern the token covers all topics. The line
`anonymous` grants rights to clients that do not log in. A look-up compares the digest of a secret with the digest of
every token, so that the time it takes reveals nothing. docs/security.md has the table of routes.
"""

import hashlib
import hmac
import logging
import os
import re
import stat
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

# Each route names one of these. OPEN needs no login, STATUS needs any login.
OPEN: Final = "open"
STATUS: Final = "status"
PUBLISH: Final = "publish"
CONSUME: Final = "consume"
ADMIN: Final = "admin"

# The parameters of a route that touches one topic, and the channel of a route that touches one channel.
TOPIC: Final = ("topic",)
CHANNEL: Final = "channel"
# Rights that a token may be given. No right includes another, except that every token has STATUS.
GRANTED: Final = (STATUS, PUBLISH, CONSUME, ADMIN)

ANONYMOUS: Final = "anonymous"
DIGEST: Final = "sha256:"
ALL_TOPICS: Final = "*"
TOKEN_CHARS_MIN: Final = 16
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO

_DIGEST = re.compile("[0-9a-fA-F]{64}", re.ASCII)
_PATTERN = re.compile(r"[].a-zA-Z0-9_#*?[!-]+", re.ASCII)
# The characters that RFC 6750 allows and Basic can carry.
_TOKEN = re.compile("[!-~]+", re.ASCII)

logger = logging.getLogger(__name__)


class TokenFileError(Exception):
    """Error in a token file; str() of it is the reason, and never contains a token."""


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """Rights of one line of the file."""

    digest: bytes
    rights: frozenset[str]
    topics: str = ALL_TOPICS

    def allows(self, right: str, topics: tuple[str, ...], channel: str) -> bool:  # noqa: ARG002 - for all channels
        """Return whether a right is granted on each of the topics; without topics on everything.

        A token for some topics grants nothing outside them. channel: empty if all channels of a topic are meant.
        """
        if right == STATUS:
            return True
        if right not in self.rights:
            return False
        if self.topics == ALL_TOPICS:
            return True
        # Some routes of a lookup daemon take ALL_TOPICS for a topic's name.
        is_for_some = bool(topics) and ALL_TOPICS not in topics
        return is_for_some and all(fnmatchcase(topic, self.topics) for topic in topics)


class TokenFile:
    """Tokens of a file. Raises: TokenFileError."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.grants, self.anonymous = read_tokens(path)

    def reload(self) -> None:
        """Read the file again; keep the old tokens if it is invalid."""
        try:
            self.grants, self.anonymous = read_tokens(self.path)
        except TokenFileError as error:
            logger.error("HTTP: cannot reload tokens: %s; the old ones stay in use", error)
        else:
            logger.info("HTTP: reloaded %d tokens", len(self.grants))

    def find(self, secret: bytes) -> TokenGrant | None:
        digest = hashlib.sha256(secret).digest()
        found = None
        for grant in self.grants:
            if hmac.compare_digest(grant.digest, digest):
                found = grant
        return found


def read_tokens(path: str) -> tuple[tuple[TokenGrant, ...], TokenGrant | None]:
    """Return the grants of a file, and the grant of anonymous clients. Raises: TokenFileError."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise TokenFileError(f"open {path}: {(reason or str(error)).lower()}") from error
    if mode & OTHERS:
        logger.warning("HTTP: %s has mode %03o: others than its owner can use it", path, stat.S_IMODE(mode))
    grants: dict[bytes, TokenGrant] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            grant = grant_of(words)
        except ValueError as error:
            raise TokenFileError(f"{path}: line {number}: {error}") from None
        if grant.digest in grants:
            raise TokenFileError(f"{path}: line {number}: the token is a duplicate")
        grants[grant.digest] = grant
    anonymous = grants.pop(b"", None)
    return tuple(grants.values()), anonymous


def grant_of(words: list[str]) -> TokenGrant:
    """Return the grant of a line; the grant of `anonymous` has an empty digest. Raises: ValueError."""
    if not 2 <= len(words) <= 3:
        raise ValueError("a line must have a token, its rights and optionally a pattern of topics")
    token, rights_text, *patterns = words
    rights = frozenset(rights_text.split(","))
    if not rights <= set(GRANTED):
        raise ValueError(f"rights must be of {', '.join(GRANTED)}, separated by commas")
    pattern = patterns[0] if patterns else ALL_TOPICS
    if not _PATTERN.fullmatch(pattern):
        raise ValueError("no topic matches the pattern")
    return TokenGrant(digest_of(token), rights, pattern)


def digest_of(token: str) -> bytes:
    """Return the digest of a token in the file. Raises: ValueError."""
    if token == ANONYMOUS:
        return b""
    if token.startswith(DIGEST):
        text = token.removeprefix(DIGEST)
        if not _DIGEST.fullmatch(text):
            raise ValueError("a digest must have 64 hex digits")
        return bytes.fromhex(text)
    if len(token) < TOKEN_CHARS_MIN or not _TOKEN.fullmatch(token):
        raise ValueError(f"a token must have at least {TOKEN_CHARS_MIN} characters, all printable ASCII")
    return hashlib.sha256(token.encode("ascii")).digest()
