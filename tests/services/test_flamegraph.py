"""What becomes of py-spy's pictures. How they come about is tested by tests/bench/test_flame.py."""

import re
from html import escape

import pytest

from pyqd.services.flamegraph import readable, readable_name

WAITING = "Queue.get (gevent/_threading.py)"


def picture(total: int, *frames: tuple[str, int, int, int]) -> str:
    """Return a picture as py-spy draws it. frames: (name, row, first sample, samples)."""
    drawn = "".join(
        f"<g><title>{escape(name)} ({samples:,} samples, 0.00%)</title>"
        f'<rect x="0.0%" y="{36 + 16 * row}" width="0.0%" height="15" fill="rgb(1,2,3)" fg:x="{x}" fg:w="{samples}"/>'
        f'<text x="0.0%" y="0.0"></text></g>'
        for name, row, x, samples in frames
    )
    return (
        '<svg version="1.1" width="1200" height="500" viewBox="0 0 1200 500">'
        '<text id="title" x="0">py-spy record</text>'
        f'<svg id="frames" x="10" width="1180" total_samples="{total}"><g><title>all ({total} samples, 100%)</title>'
        f'<rect x="0%" y="20" width="100%" height="15" fill="rgb(1,2,3)" fg:x="0" fg:w="{total}"/></g>'
        f"{drawn}</svg></svg>"
    )


def frames_of(shown: str) -> set[tuple[str, int, int, int]]:
    """Return (name, row, first sample, samples) of each frame."""
    found = re.findall(r'<title>(.*?) \([0-9,]+ samples, .*?y="(\d+)".*?fg:x="(\d+)" fg:w="(\d+)"', shown)
    return {(name, (int(y) - 36) // 16, int(x), int(samples)) for name, y, x, samples in found if name != "all"}


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("IoLoop_step (ioloop.pyx)", "pyqd.hot.ioloop.IoLoop.step"),
        ("IoLoop_step (ioloop.pyx:348)", "pyqd.hot.ioloop.IoLoop.step"),
        ("io_loop (ioloop.pyx)", "pyqd.hot.ioloop.io_loop"),
        ("sockets_send_some (pyqd/hot/sockets.pxd)", "pyqd.hot.sockets.send_some"),
        ("crc_extend_hardware (crc32c.c)", "pyqd.hot.crc32c.crc_extend_hardware"),
        ("__pyx_tp_dealloc_4pyqd_3hot_7segment_Segment (pyqd/hot/segment.pxd)", "pyqd.hot.segment.Segment"),
        ("Hub.run (gevent/hub.py)", "Hub.run (gevent/hub.py)"),
        ("ev_run (gevent/libev/corecext.cpython-311-x86_64-linux-gnu.so)", "ev_run (gevent/libev/corecext)"),
        ("send (libc.so.6)", "send (libc.so.6)"),
        ("f (other.pyx)", "f (other.pyx)"),
        ("all", "all"),
        ("Py_DECREF (object.h)", ""),
        ("__Pyx__ExceptionSave (schedule.pyx)", ""),
        ("0x7f19410a3f16 (libc.so.6)", ""),
        ("pyqd_outermost (outermost.c)", ""),
    ],
)
def test_a_frame_is_called_as_in_the_source(title: str, name: str) -> None:
    assert readable_name(title) == name


def test_frames_of_one_name_are_one_and_what_is_noise_counts_for_its_caller() -> None:
    shown = readable(
        picture(
            10,
            ("io_loop (ioloop.pyx)", 0, 0, 6),
            ("Py_DECREF (object.h)", 1, 0, 2),
            ("Log_append (log.pyx)", 2, 0, 2),
            ("Log_append (log.pyx)", 1, 2, 3),
            ("run <x> (gevent/hub.py)", 0, 6, 4),
        )
    )
    assert frames_of(shown) == {
        ("pyqd.hot.ioloop.io_loop", 0, 0, 6),
        ("pyqd.hot.log.Log.append", 1, 0, 5),
        ("run &lt;x&gt; (gevent/hub.py)", 0, 6, 4),
    }
    assert "py-spy record" not in shown


def test_a_function_that_calls_itself_is_one_frame() -> None:
    shown = readable(picture(4, ("run_wakes (schedule.pyx)", 0, 0, 4), ("run_wakes (schedule.pyx)", 1, 0, 4)))
    assert frames_of(shown) == {("pyqd.hot.schedule.run_wakes", 0, 0, 4)}


def test_what_threads_waited_for_work_is_left_out_with_its_samples() -> None:
    shown = readable(picture(9, ("run (pool.py)", 0, 0, 8), (WAITING, 1, 0, 5), ("wait (x.py)", 2, 0, 5)))
    assert frames_of(shown) == {("run (pool.py)", 0, 0, 3)}
    assert 'total_samples="4"' in shown


@pytest.mark.parametrize("text", ["", "no picture", picture(0), picture(5, (WAITING, 0, 0, 5))])
def test_what_shows_nothing_stays_as_it_is(text: str) -> None:
    assert readable(text) == text
