"""Build the compiled half of pyqd: pyx/LAYER/NAME.pyx becomes the extension module pyqd.hot.LAYER.NAME.

Everything that is not about extensions stands in pyproject.toml. The environment decides six things:

PYQD_DEBUG=1        debug build: the C macro PYQD_DEBUG is 1, indexes and None are checked, -O1
PYQD_WERROR=1       a warning of Cython or of the C compiler ends the build
PYQD_BUILD_BENCH=1  also build bench/NAME.pyx and tests/support/NAME.pyx, in place; never for a wheel
PYQD_ANNOTATE=1     write Cython's annotated HTML to build/cython/annotated, and build nothing
PYQD_CFLAGS=...     options for the C compiler after all others, such as -O0 where time matters more than speed
PYQD_SKIP_EXT=1     no extension at all: `make` installs the dependencies this way and compiles in a step of its own

Generated C goes to build/cython/release or build/cython/debug. What decides how an extension is compiled (this file,
the mode, the versions, the flags) is written to a stamp beside it; when the stamp differs, everything is built again,
because the times of change which Cython and setuptools compare say nothing about flags.
"""

import contextlib
import gc
import hashlib
import os
import platform
import re
import shlex
import signal
import sys
import sysconfig
import time
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# All paths below are relative to the checkout.
os.chdir(Path(__file__).resolve().parent)


def env_flag(name):
    return os.environ.get(name, "0") not in ("", "0")


DEBUG = env_flag("PYQD_DEBUG")
ANNOTATE = env_flag("PYQD_ANNOTATE")
WERROR = env_flag("PYQD_WERROR")
MODE = "debug" if DEBUG else "release"
CYTHON_DIR = Path("build") / "cython" / ("annotated" if ANNOTATE else MODE)

BAR_WIDTH = 40
BAR_REFRESH_S = 0.5

# wraparound and cdivision change the meaning of code, so they are the same in both builds. With wraparound off a
# negative index is a mistake, and boundscheck then reports it.
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    # Functions and methods are CPython's own kinds, and no class is pickled. Each module then needs less of Cython's
    # helpers, which take the C compiler longer than most modules themselves.
    "binding": False,
    "auto_pickle": False,
    # The C compiler sees further: Cython's own check is wrong about a `while True` that is left by break.
    "warn.maybe_uninitialized": False,
    "warn.multiple_declarators": True,
    "warn.undeclared": False,
    "warn.unreachable": True,
    "warn.unused": True,
}

# Cython's own C is clean under these with Cython 3.3 and gcc 12: whatever they report comes from a source here.
WARNING_FLAGS = ["-Wall", "-Wextra"]
# Frame pointers and -g1 give py-spy and perf the names of native frames; they cost next to nothing.
# -O3 made `make run` on a fresh clone 9 s slower; mpub, pub and consume-4 take as many instructions, within 2.5 %.
COMPILE_FLAGS = [
    "-O1" if DEBUG else "-O2",
    "-fno-strict-aliasing",
    "-fno-omit-frame-pointer",
    "-fvisibility=hidden",
    "-g" if DEBUG else "-g1",
    *WARNING_FLAGS,
    *(["-Werror"] if WERROR else []),
    *shlex.split(os.environ.get("PYQD_CFLAGS", "")),
]


def make_extension(name, source):
    return Extension(
        name,
        [source],
        define_macros=[("PYQD_DEBUG", "1" if DEBUG else "0")],
        extra_compile_args=COMPILE_FLAGS,
    )


def module_of(source):
    """Return the dotted name of the extension module that a .pyx becomes."""
    package = ("pyqd", "hot", *source.parent.parts[1:]) if source.parts[0] == "pyx" else source.parent.parts
    return ".".join((*package, source.stem))


def find_extensions():
    if env_flag("PYQD_SKIP_EXT"):
        return []
    found = sorted(Path("pyx").glob("*/*.pyx"))
    if env_flag("PYQD_BUILD_BENCH"):
        found += sorted([*Path("bench").glob("*.pyx"), *Path("tests/support").glob("*.pyx")])
    return [make_extension(module_of(source), str(source)) for source in found]


OWN_MODULE = r"(?:pyqd\.hot\.\w+|bench)\.\w+"
CIMPORT = re.compile(rf"^\s*(?:from\s+({OWN_MODULE})\s+cimport|cimport\s+({OWN_MODULE}))", re.MULTILINE)


def interface_path(module):
    return Path(*module.split(".")).with_suffix(".pxd")


def interfaces_behind(source):
    """Return every .pxd that a .pyx is compiled against: its own, those that it cimports, and so on."""
    source = Path(source)
    found = set()
    waiting = [source, interface_path(module_of(source))]
    while waiting:
        path = waiting.pop()
        if path in found or not path.exists():
            continue
        found.add(path)
        for match in CIMPORT.finditer(path.read_text()):
            waiting.append(interface_path(match[1] or match[2]))
    return found - {source}


def drop_outdated_c(extensions):
    """Remove each generated C file that is not newer than all the .pxd files behind it.

    cythonize takes a .pxd as a dependency of its own .pyx only when the two lie side by side. Here they do not, and
    without this an edit of pyqd/hot/primitives/heap.pxd would rebuild the users of heap and not heap itself, nor a
    module that cimports heap in its .pxd alone. Two fields that changed places would then give wrong values in silence.
    """
    for extension in extensions:
        source = Path(extension.sources[0])
        generated = CYTHON_DIR / source.with_suffix(".c")
        if generated.exists():
            newest = max((path.stat().st_mtime_ns for path in interfaces_behind(source)), default=0)
            if generated.stat().st_mtime_ns <= newest:
                generated.unlink()


def drop_orphans(root):
    """Remove each extension module below pyqd/hot, and each generated C file, whose .pyx is gone or has moved.

    An import would still find the module, and setuptools would pack it into a wheel.
    """
    hot = Path(root, "pyqd", "hot")
    for module in hot.rglob("*.so"):
        if not Path("pyx", module.relative_to(hot).parent, module.name.split(".")[0] + ".pyx").exists():
            module.unlink()
    for generated in (CYTHON_DIR / "pyx").rglob("*.c"):
        if not generated.relative_to(CYTHON_DIR).with_suffix(".pyx").exists():
            generated.unlink()


def build_identity():
    """Return a digest of all that decides how an extension is compiled, apart from its sources."""
    from Cython import __version__ as cython_version

    parts = [Path(__file__).read_text(), MODE, str(WERROR), cython_version, platform.python_version()]
    parts += [str(sysconfig.get_config_var("EXT_SUFFIX")), *map(os.environ.get, ("CC", "CFLAGS", "PYQD_CFLAGS"))]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


@contextlib.contextmanager
def progress(count, *directories):
    """Draw a bar on a terminal meanwhile. count: of modules; each has a C file, then a library, below a directory."""
    if not sys.stderr.isatty():
        yield
        return
    began_s, parent = time.time(), os.getpid()
    # A process: threads do not go together with the workers that cythonize forks.
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while os.getppid() == parent:
            with contextlib.suppress(OSError):
                files = [path for directory in directories for path in directory.rglob("*.*")]
                made = sum(path.suffix in (".c", ".so") and path.stat().st_mtime >= began_s for path in files)
                part = min(made / (2 * count), 1.0)
                bar = "#" * int(part * BAR_WIDTH)
                os.write(2, f"\r  [{bar:{BAR_WIDTH}}] {part:4.0%}, {time.time() - began_s:.0f} s ".encode())
            time.sleep(BAR_REFRESH_S)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.write(2, b"\r" + b" " * (BAR_WIDTH + 20) + b"\r")


class BuildExt(build_ext):
    """Cythonize when extensions are built, and only then: sdist and metadata need no compiler."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()
        if self.inplace:
            # Separate from the directory of a wheel, so that nothing of bench/ can get into one.
            self.build_lib = str(Path("build") / "inplace")

    def run(self):
        if not self.extensions:
            return
        if ANNOTATE:
            self.translate()
            return
        # In-place files and a wheel's files are two sets with a stamp each.
        stamp = CYTHON_DIR.parent / ("wheel.stamp" if not self.inplace else "inplace.stamp")
        identity = build_identity()
        if not stamp.exists() or stamp.read_text() != identity:
            self.force = True
            stamp.unlink(missing_ok=True)
        # A build of few modules is too short for a bar.
        bar = progress(len(self.extensions), CYTHON_DIR, Path(self.build_lib))
        with bar if self.force else contextlib.nullcontext():
            self.translate()
            super().run()
        drop_orphans(self.build_lib)
        if self.inplace:
            drop_orphans(".")
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(identity)

    def translate(self):
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError

        drop_outdated_c(self.extensions)
        # Cython's trees live until their module is written: collecting garbage as often as by default finds none and
        # takes a quarter of the translation. The worker processes inherit the threshold.
        gc.set_threshold(200_000)
        try:
            translated = cythonize(
                [Extension(extension.name, list(extension.sources)) for extension in self.extensions],
                build_dir=str(CYTHON_DIR),
                include_path=["."],
                compiler_directives=DIRECTIVES,
                nthreads=os.cpu_count() or 1,
                force=bool(self.force),
                annotate=ANNOTATE,
            )
        except CompileError as error:
            # Cython has printed the errors; its traceback would only bury them.
            raise SystemExit(f"cython failed: {error}") from None
        by_name = {extension.name: extension for extension in translated}
        for extension in self.extensions:
            extension.sources = by_name[extension.name].sources
            extension.depends = by_name[extension.name].depends
        # The largest first: none of them is then left to one core at the end.
        self.extensions.sort(key=lambda extension: -Path(extension.sources[0]).stat().st_size)


# Worker processes of cythonize may import this file again: they need this setting, and must not build.
if WERROR:
    from Cython.Compiler import Options

    Options.warning_errors = True

if __name__ == "__main__":
    setup(ext_modules=find_extensions(), cmdclass={"build_ext": BuildExt})
