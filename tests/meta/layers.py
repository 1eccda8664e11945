"""The layers of pyqd, in one table, and the imports of each module, read from the sources.

A module imports from its own layer and from those below. Its path gives its layer: pyqd/<layer>/ for Python,
pyx/<layer>/ and pyqd/hot/<layer>/ for compiled code.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Lowest first.
LAYERS = (
    "primitives",
    "config",
    "wire",
    "fallback",
    "client",
    "trace",
    "tools",
    "diskqueue",
    "broker",
    "net",
    "http",
    "lookupd",
    "tcp",
    "durability",
    "metrics",
    "debug",
    "api",
    "admin",
    "apps",
    "testing",
)

# Layers that other programs stand on without a broker. Each imports only from itself and from these.
FOUNDATIONS = {
    "primitives": (),
    "net": ("primitives",),
    "http": ("primitives", "net"),
    "client": ("primitives", "wire", "fallback"),
    "trace": ("primitives", "wire", "fallback", "client"),
    "tools": ("primitives", "wire", "fallback", "client", "trace"),
    "admin": ("primitives", "config", "wire", "fallback", "client", "trace"),
}

# Two objects that call each other: an engine and its links, jobs on segments and the pool that uses them, a server and
# its connections, the broker in memory and its producers and consumers.
LAYERS_WITH_CYCLES_OF_TYPES = ("client", "diskqueue", "tcp", "testing")

# Below this layer nothing switches greenlets.
LOWEST_LAYER_OF_GEVENT = "net"
SWITCHING_PACKAGES = ("gevent", "greenlet")

# The Spark source is a client of the daemon: it shares the client, and the code that both ends of the wire need.
LAYERS_OF_SPARK = ("primitives", "wire", "fallback", "client")
SPARK_PACKAGES = ("pyqd_spark", "pyspark_pyqd")


@dataclass(frozen=True)
class Import:
    """One import: the dotted name, the line, and whether only type checkers see it."""

    name: str
    line: int
    typing_only: bool = False


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name of a source: pyx/wire/scanner.pyx and pyqd/hot/wire/scanner.pxd are one module.

    The packages in spark/ are top-level ones.
    """
    parts = path.relative_to(root).with_suffix("").parts
    if parts[0] == "spark":
        parts = parts[1:]
    if parts[0] == "pyx":
        parts = ("pyqd", "hot", *parts[1:])
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(name: str) -> str | None:
    """Return the layer of a dotted name; None for the package itself, for names outside of it and for unknown ones."""
    parts = name.split(".")
    if parts[0] in SPARK_PACKAGES:
        return "apps"
    if parts[0] != "pyqd":
        return None
    layer = parts[2:3] if parts[1:2] == ["hot"] else parts[1:2]
    return layer[0] if layer and layer[0] in LAYERS else None


def is_typing_guard(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def python_imports(source: str, package: str) -> Iterator[Import]:
    """Yield the imports of Python source anywhere in it, those inside functions too. package: for relative imports."""
    tree = ast.parse(source)
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and is_typing_guard(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in guarded)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, id(node) in guarded)


FROM_IMPORT = re.compile(r"^\s*from\s+([\w.]+)\s+c?import\s+(.*)")
PLAIN_IMPORT = re.compile(r"^\s*c?import\s+([\w., ]+)")


def cython_imports(source: str) -> Iterator[Import]:
    """Yield the imports and cimports of Cython source."""
    lines = source.splitlines()
    for number, line in enumerate(lines, start=1):
        if match := FROM_IMPORT.match(line):
            names = match[2].split("#")[0]
            following = number
            while "(" in names and ")" not in names and following < len(lines):
                names += " " + lines[following].split("#")[0]
                following += 1
            for name in names.strip("() ").split(","):
                if words := name.strip("() ").split():
                    yield Import(f"{match[1]}.{words[0]}", number)
        elif match := PLAIN_IMPORT.match(line):
            for name in match[1].split(","):
                if words := name.split():
                    yield Import(words[0], number)


@cache
def imports_of(path: Path, root: Path) -> list[Import]:
    source = path.read_text()
    if path.suffix in (".pyx", ".pxd"):
        return list(cython_imports(source))
    name = module_name(path, root)
    return list(python_imports(source, name if path.stem == "__init__" else name.rpartition(".")[0]))


def resolve(name: str, modules: set[str]) -> str | None:
    """Return the module that a dotted name lies in: pyqd.broker.topic.Topic is in pyqd.broker.topic."""
    while name:
        if name in modules:
            return name
        name = name.rpartition(".")[0]
    return None


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return one cycle of a graph, first node first and last; empty if there is none."""
    finished: set[str] = set()

    def visit(node: str, trail: list[str]) -> list[str]:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node in finished:
            return []
        for target in sorted(graph.get(node, ())):
            if cycle := visit(target, [*trail, node]):
                return cycle
        finished.add(node)
        return []

    for start in sorted(graph):
        if cycle := visit(start, []):
            return cycle
    return []
