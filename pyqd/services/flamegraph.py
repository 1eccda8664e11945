"""py-spy's flame graph with the names of compiled functions as they stand in the source, and without the C around them.

py-spy calls a method of a compiled class `IoLoop_step (ioloop.pyx)`, and shows what the C compiler inlined into it:
reference counts, helpers of Cython, headers. Here it becomes `pyqd.hot.ioloop.IoLoop.step`, the rest is left out, what
its samples were counts for its caller, and frames that have the same name then are one. What threads waited for work is
left out with its samples. py-spy's picture is kept, zoom and search included; what is drawn in it is drawn anew.

Sources: pictures of py-spy 0.4; Cython's names of C functions, where each part stands behind its length.
"""

import re
import sys
from dataclasses import dataclass, field
from html import escape, unescape
from pathlib import Path
from typing import Final

import pyqd.hot

MODULES: Final = frozenset(path.stem for path in Path(pyqd.hot.__path__[0]).glob("*.p[xy][di]"))
# Where a thread of gevent's pool waits for work.
WAITING: Final = "Queue.get (gevent/_threading.py)"
ROW: Final = 16
# As wide as py-spy draws: the space for frames, and a letter in its font.
FRAMES_WIDTH: Final = 1180
LETTER_WIDTH: Final = 12 * 0.59

_CONTENT = re.compile(r'(<svg id="frames"[^>]*total_samples=")(\d+)("[^>]*>)(.*?)(</svg>)', re.DOTALL)
_FRAME = re.compile(
    r'<g><title>(?P<title>[^<]*) \([0-9,]+ samples, [^<]*</title><rect x="[^"]*" y="(?P<y>\d+)"[^>]*?'
    r'fill="(?P<fill>[^"]*)" fg:x="(?P<x>\d+)" fg:w="(?P<w>\d+)"/>'
)
_TITLE = re.compile(r"(?P<function>.*) \((?P<file>[^()]*)\)", re.DOTALL)
_COMPILED = re.compile(r"(?:.*/)?(?P<module>\w+)\.(?:pyx|pxd|c)")
_MANGLED = re.compile(r"__pyx_\w*?4pyqd_3hot_(\d+)(\w+)")
_METHOD = re.compile(r"([A-Z][A-Za-z0-9]*)_(\w+)")
_LINE = re.compile(r":\d+$")
_HEADING = re.compile('(<text id="title"[^>]*>)[^<]*')
_ABI = re.compile(r"\.(?:cpython-|abi3)[^/]*so$")
_NOISE = re.compile(r"__Pyx|__pyx|0x[0-9a-f]+$|pyqd_outermost$")


@dataclass
class Frame:
    """A function in one stack, with those that it called. samples: its own and theirs."""

    name: str
    fill: str
    samples: int = 0
    called: dict[str, "Frame"] = field(default_factory=dict)


def readable_name(title: str) -> str:
    """Return what a frame is called for people, "" for one that is to be left out. title: py-spy's name of it."""
    parts = _TITLE.fullmatch(title)
    if parts is None:
        return title
    function, file = parts["function"], _LINE.sub("", parts["file"])
    source = _COMPILED.fullmatch(file)
    module = source["module"] if source else ""
    if mangled := _MANGLED.match(function):
        length, rest = int(mangled[1]), mangled[2]
        module, function = rest[:length], rest[length:].lstrip("_")
    if not function or _NOISE.match(function) or file.endswith((".h", ".hpp")):
        return ""
    if module not in MODULES:
        return f"{function} ({_ABI.sub('', file)})"
    if method := _METHOD.fullmatch(function):
        return f"pyqd.hot.{module}.{method[1]}.{method[2]}"
    return f"pyqd.hot.{module}.{function.removeprefix(module + '_')}"


def read_frames(content: str, total: int) -> Frame:
    """Return the tree of what py-spy has drawn, under readable names."""
    root = Frame("", "", total)
    # The frame of each row in which what is found next may lie, with the end of that row's frame.
    above: list[tuple[int, int, Frame]] = []
    found = sorted(_FRAME.finditer(content), key=lambda match: (int(match["x"]), int(match["y"])))
    for match in found:
        x, y, samples = int(match["x"]), int(match["y"]), int(match["w"])
        while above and (above[-1][0] >= y or above[-1][1] <= x):
            above.pop()
        caller = above[-1][2] if above else root
        name = readable_name(unescape(match["title"]))
        frame = caller
        if name and name != caller.name:
            frame = caller.called.setdefault(name, Frame(name, match["fill"]))
            frame.samples += samples
        above.append((y, x + samples, frame))
    return root


def drop_waiting(frame: Frame) -> int:
    """Take out what threads waited for work. Returns: the samples taken out."""
    waited = frame.called.pop(WAITING).samples if WAITING in frame.called else 0
    waited += sum(drop_waiting(called) for called in frame.called.values())
    frame.called = {name: called for name, called in frame.called.items() if called.samples}
    frame.samples -= waited
    return waited


def draw(root: Frame, top: int) -> tuple[str, int]:
    """Return the frames as py-spy draws them, and the bottom of the lowest. top: of the first row."""
    drawn: list[str] = []
    bottom = top
    waiting = [(frame, x, top) for frame, x in laid_out(root, 0)]
    while waiting:
        frame, x, y = waiting.pop()
        bottom = max(bottom, y + ROW)
        share = frame.samples / root.samples
        left = 100 * x / root.samples
        letters = int(share * FRAMES_WIDTH / LETTER_WIDTH)
        label = frame.name if len(frame.name) <= letters else frame.name[: letters - 2] + ".." if letters > 3 else ""
        drawn.append(
            f"<g><title>{escape(frame.name)} ({frame.samples:,} samples, {share:.2%})</title>"
            f'<rect x="{left:.4f}%" y="{y}" width="{100 * share:.4f}%" height="{ROW - 1}" fill="{frame.fill}"'
            f' fg:x="{x}" fg:w="{frame.samples}"/>'
            f'<text x="{left + 0.25:.4f}%" y="{y + 10.5:.2f}">{escape(label)}</text></g>'
        )
        waiting += [(called, at, y + ROW) for called, at in laid_out(frame, x)]
    return "".join(drawn), bottom


def laid_out(frame: Frame, x: int) -> list[tuple[Frame, int]]:
    """Return what a frame called, each with the sample at which it begins."""
    placed = []
    for called in sorted(frame.called.values(), key=lambda called: called.name):
        placed.append((called, x))
        x += called.samples
    return placed


def readable(picture: str) -> str:
    """Return py-spy's picture with readable names; what is no such picture as it is."""
    content = _CONTENT.search(picture)
    if content is None or not int(content[2]):
        return picture
    tops = [int(match["y"]) for match in _FRAME.finditer(content[4])]
    root = read_frames(content[4], int(content[2]))
    drop_waiting(root)
    if not root.samples:
        return picture
    frames, bottom = draw(root, min(tops))
    spared = max(tops) + ROW - bottom
    before, after = picture[: content.start()], picture[content.end() :]
    before = _HEADING.sub(r"\g<1>pyqd", before)
    if height := re.search(r'<svg version="1.1" width="\d+" height="(\d+)"', before):
        before = before.replace(f'height="{height[1]}"', f'height="{int(height[1]) - spared}"')
        before = before.replace(f' {height[1]}"', f' {int(height[1]) - spared}"')
        matched = f'y="{int(height[1]) - 11}.00"'
        before = before.replace(matched, f'y="{int(height[1]) - 11 - spared}.00"')
    return f"{before}{content[1]}{root.samples}{content[3]}{frames}{content[5]}{after}"


def main(path: str) -> None:
    """Make the names of a picture readable, in place."""
    file = Path(path)
    file.write_text(readable(file.read_text()))


if __name__ == "__main__":
    main(sys.argv[1])
