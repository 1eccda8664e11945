"""Numbers of examples for properties, which are smaller in a quick look."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

QUICK_MAX: Final = 20
# Profile of `make test-fast`, as tests/conftest.py registers it.
QUICK: Final = "quick"


def examples(count: int) -> int:
    """Return `count`, or QUICK_MAX if that is fewer and a quick look is wanted."""
    is_quick = settings.default is not None and settings.default.max_examples == QUICK_MAX
    return min(count, QUICK_MAX) if is_quick else count
