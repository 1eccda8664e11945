"""Needs of a test that a machine may lack: the test is skipped then, but in continuous integration it fails."""

import os
from typing import NoReturn

import pytest


def is_ci() -> bool:
    """Return whether the suite runs in continuous integration, which says CI=true by convention."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def skip_outside_ci(reason: str) -> NoReturn:
    """Skip the test; in continuous integration fail it, so that a suite that proves less than it says is seen."""
    if is_ci():
        pytest.fail(f"{reason}: a machine for continuous integration must provide it")
    pytest.skip(reason)
