"""Print every module of pyqd, package by package, with the first line of its docstring: `make map`.

A compiled module is listed in the package of its layer, marked with *, and so is an interface without a module (.pxd).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("pyqd", "spark/pyqd_spark")
DOCSTRING = re.compile(r'r?"""(.*?)(?:"""|\n)')


def first_line(path: Path) -> str:
    """Return the first line of a source's docstring."""
    text = path.read_text()
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    if path.suffix == ".pxd":
        return text.partition("\n")[0].lstrip("# ")
    found = DOCSTRING.match(text)
    return found[1] if found else ""


def compiled(layer: str) -> Iterator[tuple[str, str]]:
    """Yield name and first line of each compiled module of a layer."""
    sources = {path.stem: path for path in (ROOT / "pyqd" / "hot" / layer).glob("*.pxd")}
    sources.update({path.stem: path for path in (ROOT / "pyx" / layer).glob("*.pyx")})
    for name, path in sources.items():
        yield f"{name} *", first_line(path)


def packages() -> Iterator[Path]:
    for place in PLACES:
        for marker in sorted((ROOT / place).rglob("__init__.py")):
            if "hot" not in marker.parts:
                yield marker.parent


def main() -> None:
    for package in packages():
        name = package.relative_to(ROOT).as_posix()
        print(f"\n{name}/  {first_line(package / '__init__.py')}")
        modules = [(path.stem, first_line(path)) for path in package.glob("*.py") if path.stem != "__init__"]
        if package.parent == ROOT / "pyqd":
            modules += compiled(package.name)
        for module, line in sorted(modules):
            print(f"    {module:<20} {line}")


if __name__ == "__main__":
    main()
