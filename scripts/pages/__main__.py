"""Write the pages, pictures and catalogues that are made from the code, or check them: `make pages`.

make pages                        docs/flags.md, tables in docs/metrics.md and docs/tools, pyqd/openapi.json, man
                                  pages, pictures of pyqctl, catalogues of the web admin's texts
make pages ARGS=--check           write nothing; exit with 1 if a file would change
make pages ARGS=--screenshots     pictures of the web admin too: three minutes, in Chromium
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from pyqd.primitives.command_line import CommandParser
from scripts.pages import flags, metrics, openapi, tools, translations
from tests.tools.ctl import pictures

ROOT = Path(__file__).resolve().parents[2]


def files() -> Iterator[tuple[Path, str]]:
    """Yield each file with the text that it is to have."""
    for generator in (flags, metrics, openapi, tools, translations):
        yield from generator.files()
    for name in pictures.PICTURES:
        yield pictures.path_of(name), pictures.picture(name)


def is_current(path: Path, text: str) -> bool:
    if not path.exists():
        return False
    # The markup of a picture depends on the version of rich, and its text does not.
    shown = pictures.shown_text if path.suffix == ".svg" else str
    return shown(path.read_text()) == shown(text)


def main() -> int:
    """Write the files, or check them. Returns: the exit code."""
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file would change")
    parser.add_argument("--screenshots", action="store_true", help="make the pictures of the web admin too")
    given = parser.parse_args()
    stale = [(path, text) for path, text in files() if not is_current(path, text)]
    for path, text in stale:
        print(f"{path.relative_to(ROOT)} {'is stale: run make pages' if given.check else 'is new'}")
        if not given.check:
            path.write_text(text)
    if given.screenshots:
        from scripts.pages import admin_screenshots

        admin_screenshots.take_all(ROOT / "docs" / "images")
    return 1 if given.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
