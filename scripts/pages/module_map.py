"""Print every module of pyqd, package by package, with the first line of its docstring and its tests: `make map`.

A compiled module is listed in the package of its layer, marked with *, and so is an interface without a module (.pxd).
The tests of a module are tests/<layer>/test_<module>.py, else the files with the most names imported from it, else
those whose names begin like the module's.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("pyqd", "spark/pyqd_spark")
TESTS = ROOT / "tests"
TESTS_SHOWN = 3
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


def names_imported(path: Path) -> Iterator[str]:
    """Yield the dotted names that a test imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def tests_by_name() -> dict[str, Counter[str]]:
    """Return the test files by the module or name that they import, with the number of such imports."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in names_imported(path):
            for module in {name, name.rpartition(".")[0]}:
                found[module][path.relative_to(TESTS).as_posix()] += 1
    return found


def tests_of(layer: str, module: str, name: str, importing: dict[str, Counter[str]]) -> str:
    """Return the tests of a module for its line. name: dotted."""
    own = f"{layer}/test_{module}.py"
    if (TESTS / own).exists():
        return own
    files = [path for path, _ in importing[name].most_common()]
    files = files or sorted(path.relative_to(TESTS).as_posix() for path in TESTS.glob(f"*/test_{module}*.py"))
    more = f" and {len(files) - TESTS_SHOWN} more" if len(files) > TESTS_SHOWN else ""
    return ", ".join(files[:TESTS_SHOWN]) + more


def packages() -> Iterator[Path]:
    for place in PLACES:
        for marker in sorted((ROOT / place).rglob("__init__.py")):
            if "hot" not in marker.parts:
                yield marker.parent


def main() -> None:
    importing = tests_by_name()
    for package in packages():
        name = package.relative_to(ROOT).as_posix()
        print(f"\n{name}/  {first_line(package / '__init__.py')}")
        modules = [(path.stem, first_line(path)) for path in package.glob("*.py") if path.stem != "__init__"]
        if package.parent == ROOT / "pyqd":
            modules += compiled(package.name)
        top = package.relative_to(ROOT).parts
        layer = "spark" if top[0] == "spark" else (*top, "")[1]
        for module, line in sorted(modules):
            stem = module.removesuffix(" *")
            dotted = f"pyqd.hot.{layer}.{stem}" if module != stem else ".".join([*top[top[0] == "spark" :], stem])
            tests = tests_of(layer, stem, dotted, importing)
            print(f"    {module:<20} {line}" + (f"  [{tests}]" if tests else ""))


if __name__ == "__main__":
    main()
