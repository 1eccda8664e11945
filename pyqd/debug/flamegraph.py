"""Flame graphs of the stacks that py-spy records, with compiled functions under their names in the source.

py-spy calls a method of a compiled class `IoLoop_step (ioloop.c)` and shows its inlined parts as frames of their own:
reference counts, helpers of Cython, headers. `readable` turns the first into `pyqd.hot.tcp.ioloop.IoLoop.step` and
drops the others, so that their samples count for their caller. Stacks of idle threads are dropped.

Input is py-spy's format `raw`: one stack per line, from the outermost frame to the innermost, with its number of
samples. Other programs draw or compare the same format, https://www.speedscope.app for one.

Sources: py-spy 0.4; Cython's names of C functions, in which each part follows its length.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

import pyqd.hot
from pyqd.debug.profiler import ProfileError

Stack = tuple[str, ...]

HOT: Final = Path(pyqd.hot.__path__[0])
MODULES: Final = {
    path.stem: ".".join(path.relative_to(HOT.parents[1]).with_suffix("").parts) for path in HOT.rglob("*.p[xy][di]")
}
# Frame of an idle thread of gevent's pool.
WAITING: Final = "Queue.get (gevent/_threading.py)"
TEMPLATE: Final = "flamegraph.svg"
ALL: Final = "all"
COMPILED: Final = "pyqd.hot."

# Pixels.
WIDTH: Final = 1200
ROW: Final = 16
LETTER: Final = 7.25
TOP: Final = 40
BOTTOM: Final = 28
LETTERS_MIN: Final = 3

_FRAME = re.compile(r"(?P<function>.*) \((?P<file>[^()]*?)(?::\d+)?\)", re.DOTALL)
_COMPILED = re.compile(r"(?:.*/)?(?P<module>\w+)\.(?:pyx|pxd|c)")
_MANGLED = re.compile(r"__pyx_\w*?4pyqd_3hot_(?=\d)")
_METHOD = re.compile(r"([A-Z][A-Za-z0-9]*)_(\w+)")
_ABI = re.compile(r"\.(?:cpython-|abi3)[^/]*so$")
_NOISE = re.compile(r"__Pyx|__pyx|0x[0-9a-f]+$|pyqd_call_at_root$")


@dataclass
class Frame:
    """Rectangle of a flame graph: one function in one stack. x: its first sample; its samples include those of its
    calls.
    """

    name: str
    x: int
    row: int
    samples: int = 0

    @property
    def kind(self) -> str:
        if self.name.startswith(COMPILED):
            return "compiled"
        return "python" if "(pyqd/" in self.name else "other"

    def label(self, total: int) -> str:
        """Return the part of the name that fits the rectangle, without the prefix that all compiled names share."""
        letters = int(WIDTH * self.samples / total / LETTER) - 1
        if letters < LETTERS_MIN:
            return ""
        name = self.name.removeprefix(COMPILED)
        return name if len(name) <= letters else f"{name[: letters - 2]}.."


def readable_name(title: str) -> str:
    """Return the readable name of a frame; "" for a frame that is dropped. title: py-spy's name of the frame."""
    parts = _FRAME.fullmatch(title)
    if parts is None:
        return title
    function, file = parts["function"], parts["file"]
    source = _COMPILED.fullmatch(file)
    module = source["module"] if source else ""
    if mangled := _MANGLED.match(function):
        names = list(parts_of_mangled(function[mangled.end() :]))
        module = next(name for name in (*names, "") if name in MODULES or not name)
        function = ".".join(names[names.index(module) + 1 :] if module else names)
    if not function or _NOISE.match(function) or file.endswith((".h", ".hpp")):
        return ""
    if module not in MODULES:
        return f"{function} ({_ABI.sub('', file)})"
    if method := _METHOD.fullmatch(function):
        return f"{MODULES[module]}.{method[1]}.{method[2]}"
    return f"{MODULES[module]}.{function.removeprefix(module + '_')}"


def parts_of_mangled(text: str) -> Iterator[str]:
    """Yield the parts of a name such as `9diskqueue_3log_3Log_append`: each follows its length, the last has none."""
    while digits := "".join(takewhile(str.isdigit, text)):
        end = len(digits) + int(digits)
        yield text[len(digits) : end]
        text = text[end:].removeprefix("_")
    if text:
        yield text


def readable_stack(titles: Iterable[str]) -> Stack:
    names: list[str] = []
    for title in titles:
        name = readable_name(title)
        if name and names[-1:] != [name]:
            names.append(name)
    return tuple(names)


def readable(raw: str) -> Counter[Stack]:
    """Return the number of samples of each stack that did work. raw: stacks in py-spy's format."""
    stacks: Counter[Stack] = Counter()
    for line in raw.splitlines():
        frames, _, samples = line.rpartition(" ")
        titles = frames.split(";")
        if samples.isdigit() and WAITING not in titles:
            stacks[readable_stack(titles)] += int(samples)
    # Stacks of which every frame was dropped.
    del stacks[()]
    return stacks


def fold(raw: str) -> str:
    """Return the stacks under readable names, in py-spy's format."""
    stacks = readable(raw)
    return "".join(f"{';'.join(stack)} {samples}\n" for stack, samples in sorted(stacks.items()))


def layout(stacks: Counter[Stack]) -> list[Frame]:
    """Return the frames of a picture, callers before their callees."""
    root = Frame(ALL, 0, 0)
    frames, path = [root], [root]
    for stack, samples in sorted(stacks.items()):
        shared = sum(1 for _ in takewhile(lambda pair: pair[0].name == pair[1], zip(path[1:], stack, strict=False)))
        del path[shared + 1 :]
        for name in stack[shared:]:
            path.append(Frame(name, root.samples, len(path)))
            frames.append(path[-1])
        for frame in path:
            frame.samples += samples
    return frames


def draw(raw: str) -> str:
    """Return the flame graph as an SVG image. A click zooms into a frame, Ctrl-F searches for names.

    Raises: ProfileError 501 without Jinja2, which nothing else in the daemon needs.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ModuleNotFoundError:
        raise ProfileError(501, "pictures need Jinja2: pip install 'pyqd[profile]'; format=raw needs none") from None

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    frames = layout(readable(raw))
    height = TOP + ROW * (1 + max(frame.row for frame in frames)) + BOTTOM
    total = frames[0].samples
    return environment.get_template(TEMPLATE).render(
        frames=frames, total=total, height=height, width=WIDTH, row_height=ROW, top=TOP, letter=LETTER
    )


def main(recorded: str, picture: str) -> None:
    """Draw the stacks of a recording, and write them under readable names beside the picture."""
    raw = Path(recorded).read_text(errors="replace")
    Path(picture).write_text(draw(raw))
    Path(picture).with_suffix(".txt").write_text(fold(raw))


if __name__ == "__main__":
    main(*sys.argv[1:])
