"""pyqd's Python code as one zip, for executors on which pyqd is not installed."""

from __future__ import annotations

import importlib.resources
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyqd

if TYPE_CHECKING:
    from importlib.abc import Traversable

    from pyspark.sql import SparkSession

# Layers of pyqd that its Spark package may import, of those with Python modules; tests/meta/layers.py enforces it.
LAYERS = ("primitives", "fallback", "client")
PACKAGES = ("pyqd_spark", "pyspark_pyqd")

# A zip cannot hold compiled modules. The modules of a pyqd installed beside it are used if its version is the same.
# Otherwise importing one raises ImportError, and the importer falls back to Python.
_HOT = '''\
"""The compiled modules, of an installed pyqd of the version of this zip."""

import os
import sys

for _entry in sys.path:
    try:
        with open(os.path.join(_entry, "pyqd", "__init__.py"), encoding="utf-8") as _file:
            if '__version__ = "{version}"' in _file.read().splitlines():
                __path__.append(os.path.join(_entry, "pyqd", "hot"))
    except OSError:
        pass
'''


def build_zip(path: str | os.PathLike[str]) -> Path:
    """Write the zip that spark-submit takes with --py-files, and return its path. An older file there is replaced.

    It holds the packages for Spark with their templates, and the pure-Python modules of pyqd that they need. It has no
    compiled code, so that it serves every platform and Python that pyqd supports.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=target.parent, suffix=".zip")
    os.close(descriptor)
    try:
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in contents():
                # Fixed times, so that the same code gives the same bytes.
                archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
        os.chmod(beside, 0o644)
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise
    return target


def contents() -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files of the zip. They may come from such a zip, as on YARN."""
    ours = importlib.resources.files("pyqd")
    yield "pyqd/__init__.py", (ours / "__init__.py").read_bytes()
    yield "pyqd/hot/__init__.py", _HOT.replace("{version}", pyqd.__version__).encode()
    for layer in LAYERS:
        yield from _modules(ours / layer, f"pyqd/{layer}")
    for package in PACKAGES:
        yield from _modules(importlib.resources.files(package), package)


def _modules(directory: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _modules(entry, f"{name}/{entry.name}")
        elif entry.name.endswith((".py", ".html")):
            yield f"{name}/{entry.name}", entry.read_bytes()


def ship(spark: SparkSession) -> None:
    """Send the zip to the executors of a session. Calling it again changes nothing."""
    context = spark.sparkContext
    name = f"pyqd-{pyqd.__version__}-spark.zip"
    if name in (os.path.basename(entry) for entry in context._python_includes or ()):
        return
    directory = tempfile.mkdtemp(prefix="pyqd-spark-")
    context.addPyFile(str(build_zip(Path(directory, name))))
