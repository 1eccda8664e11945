"""A JAVA_HOME for tests, whose java starts Spark in half the processor time.

Spark loads about 15,000 classes at its start. A JVM that maps them from an archive neither parses nor verifies them: a
driver takes 5 s of a core instead of 10. `make test` has the archive written once, by this module as a program.

An archive serves one class path. Spark puts its directory of settings in front of its libraries, so the script in front
of java removes the directory. Spark finds its settings by their path, and tests have no classes there.

Source: "Class Data Sharing" in the HotSpot guide, -XX:ArchiveClassesAtExit.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pyqd_spark import java
from tests.support.spark_home import CACHE, settings, spark_home

WRITE_WAIT_S = 300
SCRIPT = """\
#!/bin/bash
words=()
for word; do
    [[ $word == *{libraries} ]] && words+=({libraries}) || words+=("$word")
done
[[ "$*" == *" org.apache.spark.deploy."* || "$*" == *" org.apache.spark.executor."* ]] || exec {java} "$@"
exec {java} {options} "${{words[@]}}"
"""
# Classes that tests use: tables, SQL, Python on executors, streams.
TRAINING = """
import json, sys
import pyqd_spark

spark = pyqd_spark.session("training", config=json.loads(sys.argv[1]))
table = sys.argv[2]
spark.range(0, 100, 1, 2).withColumnRenamed("id", "n").write.parquet(table)
rows = spark.read.parquet(table)
rows.where("n % 2 = 0").groupBy("n").count().orderBy("n").collect()
rows.rdd.map(lambda row: 2 * row.n).collect()
stream = spark.readStream.schema(rows.schema).parquet(table).writeStream.trigger(availableNow=True)
stream.option("checkpointLocation", table + ".checkpoint").start(table + ".copy", format="parquet").awaitTermination()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()
jvm.wait()
"""


def fast_java(program: Path, home: Path) -> Path | None:
    """Return a JAVA_HOME for a java and a SPARK_HOME, or None if no archive was written for them."""
    archive = archive_of(program, home)
    if not archive.exists():
        return None
    # The JVM does without an archive of another class path, and is not to mention it.
    write_script(archive.parent, program, home, f"-Xlog:disable -XX:SharedArchiveFile={shlex.quote(str(archive))}")
    return archive.parent


def archive_of(program: Path, home: Path) -> Path:
    """Return the path of the archive for a java and a SPARK_HOME. Either may be replaced by another under its path."""
    said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    identity = f"{said}{home.resolve()}{(home / 'jars').resolve()}{TRAINING}"
    return CACHE / f"java-{hashlib.sha256(identity.encode()).hexdigest()[:12]}" / "classes.jsa"


def write_archive(program: Path, home: Path) -> None:
    """Run Spark once with all that tests use, and keep the classes that its JVM had at its end."""
    archive = archive_of(program, home)
    beside = archive.with_suffix(".made")
    beside.unlink(missing_ok=True)
    write_script(archive.parent, program, home, f"-Xlog:disable -XX:ArchiveClassesAtExit={shlex.quote(str(beside))}")
    with TemporaryDirectory() as name:
        environment = os.environ | {"JAVA_HOME": str(archive.parent), "SPARK_HOME": str(home)}
        command = [sys.executable, "-c", TRAINING, json.dumps(settings(Path(name))), f"{name}/table"]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=WRITE_WAIT_S, check=False)
    if done.returncode != 0 or not beside.exists():
        raise OSError(f"the driver ended with {done.returncode}: {done.stderr[-1000:].decode(errors='replace')}")
    beside.rename(archive)


def write_script(directory: Path, program: Path, home: Path, options: str) -> None:
    libraries = shlex.quote(f"{home}/jars/*")
    text = SCRIPT.format(java=shlex.quote(str(program)), libraries=libraries, options=options)
    path = directory / "bin" / "java"
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and renamed: another process may be running the script.
    beside = path.with_suffix(".made")
    beside.write_text(text)
    beside.chmod(0o755)
    beside.rename(path)


def main() -> None:
    """Write the archive if there is a Java; tests run without one too."""
    try:
        found, home = java.find(), spark_home()
        if not archive_of(found.executable, home).exists():
            write_archive(found.executable, home)
    except (java.JavaMissingError, OSError, subprocess.SubprocessError) as error:
        print(f"cannot write an archive of Spark's classes: {error}; tests of Spark take longer", file=sys.stderr)


if __name__ == "__main__":
    main()
