"""A SPARK_HOME that starts faster than the one in the package, and the settings that suit tests.

Spark's Python processes import pyspark and py4j from zips without bytecode and compile them each time, 0.9 s a process.
In the directory made here the zips' names belong to directories with links to the installed packages, whose bytecode is
kept.
"""

from __future__ import annotations

import fcntl
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from tests.support.server import REPOSITORY

CACHE = REPOSITORY / "build" / "spark"
# A compiler that starts fast and stops early. With this compiler alone the code cache is 48 MB by default, and tests of
# one session fill it: the JVM then discards code and compiles it again, a quarter of all processor time of the tests.
# The default metaspace is soon full as well, and each enlargement collects the whole heap.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, so that test processes started together make a thing once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def spark_home() -> Path:
    """Return the directory for SPARK_HOME, made of links to the installed pyspark on first use."""
    package = installed("pyspark")
    home = CACHE / f"home-{version('pyspark')}"
    with locked(CACHE / "home.lock"):
        link_all(package, home, leaving_out="python")
        link_all(package / "python", home / "python", leaving_out="lib")
        libraries = home / "python" / "lib"
        for archive in (package / "python" / "lib").glob("*.zip"):
            name = archive.name.partition("-")[0].removesuffix(".zip")
            # An earlier version of this module linked the zip of py4j.
            if (libraries / archive.name).is_symlink():
                (libraries / archive.name).unlink()
            link(installed(name), libraries / archive.name / name)
    return home


def installed(name: str) -> Path:
    """Return the directory of a package."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def link_all(source: Path, directory: Path, leaving_out: str) -> None:
    for entry in source.iterdir():
        if entry.name != leaving_out:
            link(entry, directory / entry.name)


def link(source: Path, path: Path) -> None:
    # The environment that a link of an earlier run leads to may be gone.
    if path.is_symlink() and path.readlink() != source:
        path.unlink()
    if not path.is_symlink():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(source)


def settings(directory: Path) -> dict[str, str]:
    """Return the settings of a session for tests, which writes only under `directory`."""
    return {
        "spark.master": "local[2,2]",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": JVM_OPTIONS,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    }
