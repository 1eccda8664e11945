"""GET, PUT and POST /debug/*: the counterpart of Go's pprof for a CPython process.

The paths under /debug/pprof are nsqd's. The answers are text or images for people, not Go's formats.

Source: docs/nsq/http-api.md, "/debug"; docs/http.md.
"""

import re
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any, Final

import gevent

from pyqd.api.http_params import number, refusing
from pyqd.api.rights import ADMIN
from pyqd.debug.diagnostics import LINES_SHOWN_MAX, greenlets_text, heap_text, threads_text
from pyqd.debug.flamegraph import draw, fold
from pyqd.debug.profiler import RATE_MAX, SECONDS_MAX, ProfileError, Profiler
from pyqd.http.messages import TEXT, Handler, HttpError, Request, Response, Route
from pyqd.http.query import UrlQuery
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.goquote import go_quote_str
from pyqd.primitives.memory import release_free_memory, resident_bytes

SVG: Final = "image/svg+xml"
FORMAT_SVG: Final = "svg"
FORMAT_RAW: Final = "raw"
NO_SNIFFING: Final = (("X-Content-Type-Options", "nosniff"),)
SECONDS_DEFAULT: Final = 30
RATE_DEFAULT: Final = 100
LINES_DEFAULT: Final = 50
FRAMES_MAX: Final = 25
INT64_DIGITS: Final = 19
FORM_BYTES_MAX: Final = 1024
FORM: Final = b"application/x-www-form-urlencoded"

_INTEGER = re.compile("[+-]?[0-9]+", re.ASCII)

INDEX = """\
/debug/pprof/profile?seconds=30     flame graph of the next seconds, an SVG image; also /debug/profile
/debug/profile?format=raw           the same as stacks with their samples, for other programs that draw them
/debug/pprof/heap                   memory; also /debug/heap?lines=50
/debug/pprof/goroutine              stacks of greenlets and threads; also /debug/greenlets
/debug/pprof/threadcreate           stacks of threads
/debug/pprof/block                  nothing: waiting greenlets are those of /debug/greenlets
/debug/pprof/cmdline                the command line
POST /debug/heap/start?frames=1     trace which line of source holds how much memory; this costs time and memory
POST /debug/heap/stop               trace no more
POST /debug/freememory              collect garbage, return free memory to the system
"""


def text(body: str, status: int = 200) -> Response:
    """Return a text response whose type browsers must not guess."""
    return Response(status, body.encode(errors="backslashreplace"), TEXT, NO_SNIFFING)


class DebugRoutes:
    """Routes to profiles and diagnostics of the process. greenlets: returns the named greenlets with their names."""

    def __init__(self, profiler: Profiler, greenlets: Callable[[], Iterable[tuple[Any, str]]]) -> None:
        self.profiler = profiler
        self.greenlets = greenlets

    def routes(self) -> list[Route]:
        pprof: list[tuple[str, str, Handler]] = [
            ("GET", "", lambda _request: text(INDEX)),
            ("GET", "cmdline", self.cmdline),
            ("GET", "symbol", self.symbol),
            ("POST", "symbol", self.symbol),
            ("GET", "profile", self.profile),
            ("GET", "heap", self.heap),
            ("GET", "goroutine", self.stacks),
            ("GET", "block", lambda _request: text("see /debug/greenlets\n")),
            ("GET", "threadcreate", lambda _request: text(threads_text())),
        ]
        debug: list[tuple[str, str, Handler]] = [
            ("GET", "profile", self.profile),
            ("GET", "heap", self.heap),
            ("POST", "heap/start", self.start_tracing),
            ("POST", "heap/stop", self.stop_tracing),
            ("GET", "greenlets", self.stacks),
            ("PUT", "setblockrate", self.set_block_rate),
            ("POST", "freememory", self.free_memory),
        ]
        return [
            *(
                Route(method, f"/debug/pprof/{path}", answer, common_headers=False, logged=False, right=ADMIN)
                for method, path, answer in pprof
            ),
            *(
                Route(method, f"/debug/{path}", handler, lambda: FORM_BYTES_MAX, False, right=ADMIN)
                for method, path, handler in debug
            ),
        ]

    def cmdline(self, _request: Request) -> Response:
        return text("\0".join(sys.orig_argv))

    def symbol(self, _request: Request) -> Response:
        return text("num_symbols: 0\n")

    def profile(self, request: Request) -> Response:
        """Return a flame graph of the next seconds, or its folded stacks. Switches: yes, for that time."""
        query = request.query()
        kind = query.get("format") or FORMAT_SVG
        if kind not in (FORMAT_SVG, FORMAT_RAW):
            raise HttpError(400, "INVALID_FORMAT")
        seconds = min(number(query, "seconds", SECONDS_DEFAULT, 1, digits_max=9), SECONDS_MAX)
        rate = min(number(query, "rate", RATE_DEFAULT, 1, digits_max=9), RATE_MAX)
        try:
            recorded = self.profiler.record(seconds, rate)
            # Drawing takes some ten milliseconds, more after a long profile: too long for the loop.
            shown = gevent.get_hub().threadpool.apply(draw if kind == FORMAT_SVG else fold, (recorded,))
        except ProfileError as error:
            return text(f"{error}\n", error.status)
        return Response(200, shown.encode(), SVG, NO_SNIFFING) if kind == FORMAT_SVG else text(shown)

    def heap(self, request: Request) -> Response:
        """Return a listing of the memory by type and allocation. Switches: yes."""
        lines = min(number(request.query(), "lines", LINES_DEFAULT, digits_max=9), LINES_SHOWN_MAX)
        return text(heap_text(lines, yield_to_loop))

    def start_tracing(self, request: Request) -> Response:
        frames = min(number(request.query(), "frames", 1, 1, digits_max=9), FRAMES_MAX)
        if tracemalloc.is_tracing():
            return text("traced already\n")
        tracemalloc.start(frames)
        return text("traced from now on; GET /debug/heap shows it\n")

    def stop_tracing(self, _request: Request) -> Response:
        tracemalloc.stop()
        return text("not traced any more\n")

    def stacks(self, _request: Request) -> Response:
        """Return the stacks of all greenlets and threads. Switches: yes."""
        return text(greenlets_text(self.greenlets(), yield_to_loop))

    def set_block_rate(self, request: Request) -> Response:
        """Validate the rate as nsqd does; there is nothing to set."""
        rate = form_of(request).get("rate") or request.query().get("rate") or ""
        reason = None
        if not _INTEGER.fullmatch(rate):
            reason = "invalid syntax"
        elif len(rate.lstrip("+-0")) > INT64_DIGITS or not -(1 << 63) <= int(rate) < 1 << 63:
            reason = "value out of range"
        if reason is not None:
            return text(f"invalid block rate : strconv.Atoi: parsing {go_quote_str(rate)}: {reason}", 400)
        return Response(200, common_headers=False)

    def free_memory(self, _request: Request) -> Response:
        """Collect garbage and return free memory to the system. Switches: yes."""
        before = resident_bytes()
        gevent.get_hub().threadpool.apply(release_free_memory)
        return text(f"{max(0, before - resident_bytes())} bytes returned\n")


def form_of(request: Request) -> UrlQuery:
    """Return the parameters of a form in the body; none if the body is not a form."""
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    with refusing("INVALID_REQUEST"):
        return UrlQuery(request.body.decode("ascii") if kind == FORM else "")
