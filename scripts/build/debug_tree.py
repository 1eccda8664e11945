"""Keep a copy of the sources for the debug build.

Usage: python scripts/build/debug_tree.py build/debug-tree

Copies what has changed, with its time of change, so that the build in the copy stays incremental; removes what is no
longer in the checkout. Extension modules and build/ belong to the copy itself and are left alone.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "Makefile")
DIRECTORIES = ("pyx", "pyqd", "tests", "bench", "scripts", "docs", "spark")
IGNORED_SUFFIXES = (".so", ".pyc")


def walk(tree: Path) -> Iterator[Path]:
    """Yield the paths that the copy shares with the checkout, relative to the tree."""
    for name in FILES:
        if (tree / name).is_file():
            yield Path(name)
    for name in DIRECTORIES:
        for path in (tree / name).rglob("*"):
            if path.is_file() and path.suffix not in IGNORED_SUFFIXES and "results" not in path.parts:
                yield path.relative_to(tree)


def differs(source: Path, copy: Path) -> bool:
    if not copy.exists():
        return True
    one, other = source.stat(), copy.stat()
    return (one.st_size, one.st_mtime_ns) != (other.st_size, other.st_mtime_ns)


def main(destination: Path) -> None:
    destination.mkdir(parents=True, exist_ok=True)
    wanted = set(walk(ROOT))
    for relative in sorted(wanted):
        source, copy = ROOT / relative, destination / relative
        if differs(source, copy):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
    for relative in set(walk(destination)) - wanted:
        (destination / relative).unlink()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve())
