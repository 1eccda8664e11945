"""Functions fit a screen and files a sitting. The limits are a ratchet: an exception may shrink, never grow."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.meta.repository import own_files_of, relative

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800

# "path:function" or "path" to the lines it has today. Lower the number when it shrinks; add none without a reason.
LONGER_FUNCTIONS: dict[str, int] = {}
LONGER_FILES: dict[str, int] = {}

CYTHON_FUNCTION = re.compile(
    r"^(\s*)(?:async\s+def|def|cpdef|cdef)\s+(?!class\b|struct\b|packed\b|enum\b|union\b|extern\b)"
)
FUNCTION_NAME = re.compile(r"(\w+)\s*(?:\[[^\]]*\])?\(")


def python_functions(source: str) -> Iterator[tuple[str, int]]:
    """Yield name and lines of each function, decorators apart."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def header_end(lines: list[str], start: int) -> int | None:
    """Return the index of the line that ends a function header with its colon; None for a declaration."""
    depth = 0
    for index in range(start, len(lines)):
        code = lines[index].split("#")[0].rstrip()
        depth += sum(code.count(left) for left in "([") - sum(code.count(right) for right in ")]")
        if depth <= 0:
            return index if code.endswith(":") and "(" in "".join(lines[start : index + 1]) else None
    return None


def cython_functions(source: str) -> Iterator[tuple[str, int]]:
    """Yield name and lines of each function with a body in Cython source, found by its indentation."""
    lines = source.splitlines()
    for start, line in enumerate(lines):
        match = CYTHON_FUNCTION.match(line)
        end = header_end(lines, start) if match else None
        if match is None or end is None:
            continue
        last = end
        for index in range(end + 1, len(lines)):
            text = lines[index]
            if text.strip() and len(text) - len(text.lstrip()) <= len(match[1]):
                break
            if text.strip():
                last = index
        name = FUNCTION_NAME.search(line)
        yield (name[1] if name else line.strip()), last - start + 1


def function_lengths(path: Path) -> Iterator[tuple[str, int]]:
    read = python_functions if path.suffix == ".py" else cython_functions
    return read(path.read_text())


def test_functions_fit_a_screen() -> None:
    long = {
        f"{relative(path)}:{name}": count
        for path in own_files_of(".py", ".pyx", ".pxd")
        for name, count in function_lengths(path)
        if count > FUNCTION_LINES_MAX
    }
    assert long == LONGER_FUNCTIONS


def test_files_are_read_in_one_sitting() -> None:
    lengths = {
        relative(path): len(path.read_text().splitlines()) for path in own_files_of(".py", ".pyx", ".pxd", ".sh")
    }
    assert {name: count for name, count in lengths.items() if count > FILE_LINES_MAX} == LONGER_FILES


def test_functions_of_cython_source_are_measured() -> None:
    source = """
cdef class Heap:
    cdef int count
    cdef (int, int) both(self): return 1, 2

    cdef inline int push(
        self, int slot,
    ) except -1:
        # comment
        cdef int other = f(1)

        return 0

    def __len__(self):
        return 1
cdef extern from "x.h":
    int f(int x)
"""
    assert list(cython_functions(source)) == [("push", 7), ("__len__", 2)]
