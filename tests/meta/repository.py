"""Shared helpers for tests of the repository itself: its path and its own files."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


@cache
def own_files() -> tuple[Path, ...]:
    """Return the files of the project: those that git tracks, and new ones that it would not ignore.

    Without git, as in an unpacked sdist, all that lies beside the builds and the caches.
    """
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, timeout=30, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        skipped = {"build", "dist", "data", "__pycache__"}
        found = [path for path in ROOT.rglob("*") if not skipped.intersection(path.relative_to(ROOT).parts[:-1])]
        found = [path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
    else:
        found = [ROOT / name for name in listed.split("\0") if name]
    return tuple(sorted(path for path in found if path.is_file()))


def own_files_of(*suffixes: str) -> list[Path]:
    return [path for path in own_files() if path.suffix in suffixes]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def project() -> dict[str, Any]:
    """Return pyproject.toml."""
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return loaded
