"""Flame graphs of py-spy's stacks. tests/bench/test_flame.py and test_http_profile.py record real ones."""

from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from pyqd.debug.flamegraph import ROW, TOP, WIDTH, draw, fold, readable_name

WAITING = "Queue.get (gevent/_threading.py)"
SVG = "{http://www.w3.org/2000/svg}"


class Drawn(NamedTuple):
    """Frame of a picture. row: 0 is that of all samples. x: the first of its samples."""

    name: str
    row: int
    x: int
    samples: int


def drawn(picture: str) -> list[Drawn]:
    """Return the frames of a picture, the one of all samples aside."""
    frames = []
    total = 0
    for group in ElementTree.fromstring(picture).iter(f"{SVG}g"):
        rectangle = group.find(f"{SVG}rect")
        assert rectangle is not None
        samples = int(group.attrib["data-samples"])
        total = total or samples
        frame = Drawn(
            group.attrib["data-name"], (int(rectangle.attrib["y"]) - TOP) // ROW, int(group.attrib["data-x"]), samples
        )
        assert float(rectangle.attrib["x"]) == pytest.approx(WIDTH * frame.x / total, abs=0.01)
        assert float(rectangle.attrib["width"]) == pytest.approx(WIDTH * samples / total, abs=0.01)
        assert str(group.findtext(f"{SVG}title")).startswith(f"{frame.name} ({samples:,} samples, ")
        frames.append(frame)
    return frames[1:]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("IoLoop_step (ioloop.pyx)", "pyqd.hot.tcp.ioloop.IoLoop.step"),
        ("IoLoop_step (ioloop.pyx:348)", "pyqd.hot.tcp.ioloop.IoLoop.step"),
        ("io_loop (ioloop.pyx)", "pyqd.hot.tcp.ioloop.io_loop"),
        ("sockets_send_some (pyqd/hot/net/sockets.pxd)", "pyqd.hot.net.sockets.send_some"),
        ("crc_extend_hardware (crc32c.c)", "pyqd.hot.primitives.crc32c.crc_extend_hardware"),
        (
            "__pyx_tp_dealloc_4pyqd_3hot_9diskqueue_7segment_Segment (pyqd/hot/diskqueue/segment.pxd)",
            "pyqd.hot.diskqueue.segment.Segment",
        ),
        ("__pyx_f_4pyqd_3hot_9diskqueue_3log_3Log_append (log.c)", "pyqd.hot.diskqueue.log.Log.append"),
        ("Hub.run (gevent/hub.py)", "Hub.run (gevent/hub.py)"),
        ("ev_run (gevent/libev/corecext.cpython-311-x86_64-linux-gnu.so)", "ev_run (gevent/libev/corecext)"),
        ("send (libc.so.6)", "send (libc.so.6)"),
        ("f (other.pyx)", "f (other.pyx)"),
        ("f (other.py:12)", "f (other.py)"),
        ("thread (1): main", "thread (1): main"),
        ("Py_DECREF (object.h)", ""),
        ("__Pyx__ExceptionSave (schedule.pyx)", ""),
        ("0x7f19410a3f16 (libc.so.6)", ""),
        ("pyqd_call_at_root (native_stack.c)", ""),
    ],
)
def test_a_frame_is_called_as_in_the_source(title: str, name: str) -> None:
    assert readable_name(title) == name


def test_frames_of_one_name_are_one_and_the_samples_of_noise_count_for_its_caller() -> None:
    raw = (
        "io_loop (ioloop.pyx);Py_DECREF (object.h);Log_append (log.pyx) 2\n"
        "io_loop (ioloop.pyx);__Pyx_Call (ioloop.c) 1\n"
        "io_loop (ioloop.pyx);Log_append (log.pyx) 3\n"
        "run <x> & y (gevent/hub.py) 4\n"
    )
    assert fold(raw) == (
        "pyqd.hot.tcp.ioloop.io_loop 1\npyqd.hot.tcp.ioloop.io_loop;pyqd.hot.diskqueue.log.Log.append 5\n"
        "run <x> & y (gevent/hub.py) 4\n"
    )
    assert drawn(draw(raw)) == [
        Drawn("pyqd.hot.tcp.ioloop.io_loop", 1, 0, 6),
        Drawn("pyqd.hot.diskqueue.log.Log.append", 2, 1, 5),
        Drawn("run <x> & y (gevent/hub.py)", 1, 6, 4),
    ]


def test_a_function_called_by_two_others_has_two_frames() -> None:
    assert drawn(draw("a (x.py);c (x.py) 1\nb (x.py);c (x.py) 2\na (x.py) 4\n")) == [
        Drawn("a (x.py)", 1, 0, 5),
        Drawn("c (x.py)", 2, 4, 1),
        Drawn("b (x.py)", 1, 5, 2),
        Drawn("c (x.py)", 2, 5, 2),
    ]


def test_a_function_that_calls_itself_is_one_frame() -> None:
    assert fold("run_wakes (schedule.pyx);run_wakes (schedule.pyx) 4\n") == "pyqd.hot.primitives.schedule.run_wakes 4\n"


def test_threads_that_wait_for_work_are_left_out_with_their_samples() -> None:
    assert fold(f"run (pool.py) 3\nrun (pool.py);{WAITING};wait (x.py) 5\n") == "run (pool.py) 3\n"


@pytest.mark.parametrize("raw", ["", "no stacks\n", f"{WAITING} 5\n", "Py_DECREF (object.h) 5\n"])
def test_a_picture_without_samples_says_so(raw: str) -> None:
    picture = draw(raw)
    assert "No samples: all threads waited." in picture
    assert drawn(picture) == []
    assert fold(raw) == ""


def test_the_label_of_a_frame_is_cut_to_its_width() -> None:
    picture = ElementTree.fromstring(draw(f"Log_append (log.pyx) 900\n{'f' * 50} (x.py) 90\ng (x.py) 10\n"))
    labels = [group.findtext(f"{SVG}text") for group in picture.iter(f"{SVG}g")]
    assert labels == ["all", f"{'f' * 11}..", "", "diskqueue.log.Log.append"]
