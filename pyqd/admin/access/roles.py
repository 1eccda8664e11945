"""Roles, and the topics that they are given for."""

from __future__ import annotations

import dataclasses
import enum
from fnmatch import fnmatchcase
from typing import Final


class UserRole(enum.IntEnum):
    """Role of a user. Each role includes the rights of the roles before it.

    VIEW: see numbers and messages. OPERATE: pause, unpause, empty, publish, change single messages. ADMIN: create,
    delete, tombstone, change options.
    """

    VIEW = 1
    OPERATE = 2
    ADMIN = 3

    @classmethod
    def parse(cls, text: str) -> UserRole:
        """Return a role by its name. Raises: ValueError."""
        try:
            return cls[text.upper()]
        except KeyError:
            raise ValueError(f"unknown role {text!r}: expected view, operate or admin") from None


@dataclasses.dataclass(frozen=True, slots=True)
class User:
    """A user with a role for topics. topics: patterns as in a shell, such as `orders*`. name: empty for nobody."""

    name: str
    role: UserRole
    topics: tuple[str, ...] = ("*",)

    def may(self, role: UserRole, topic: str | None = None) -> bool:
        """Return whether the user has a role for a topic. topic: None for an act on no topic, or on all topics.

        A user with a role for some topics only may see things that concern no topic, and may not change them.
        """
        if topic is None:
            return self.role >= role and (role is UserRole.VIEW or "*" in self.topics)
        return self.role >= role and any(fnmatchcase(topic, pattern) for pattern in self.topics)


EVERYBODY: Final = User("", UserRole.ADMIN)
NOBODY: Final = User("", UserRole.VIEW, ())
