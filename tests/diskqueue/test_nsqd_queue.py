"""Tests of pyqd.diskqueue.interchange: queues read as nsqd reads them, and written so that it does."""

import pytest

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.interchange import NsqdDirectory, NsqdQueue, Window, encode_record
from tests.support.nsqd_data import message, messages, snapshot, write_queue

RECORD_BYTES = len(encode_record(message(0)))


def read(path, queue="t"):
    """Return the messages of a queue, and the notes on it."""
    notes: list[str] = []
    return list(NsqdQueue(NsqdDirectory(Files(), str(path)), queue, notes.append).messages()), notes


def segment(path, number):
    return path / f"t.diskqueue.{number:06d}.dat"


def write_meta(path, text):
    (path / "t.diskqueue.meta.dat").write_text(text)


def test_written_messages_are_read_back_over_many_segments(tmp_path):
    content = [message(number, number % 3, b"x" * number) for number in range(1, 200)]
    write_queue(tmp_path, "t", content, segment_bytes_max=1000)
    before = snapshot(tmp_path)
    assert read(tmp_path) == (content, [])
    assert snapshot(tmp_path) == before
    assert max(file.stat().st_size for file in tmp_path.iterdir()) <= 1000
    last = len(before) - 2
    assert (
        tmp_path / "t.diskqueue.meta.dat"
    ).read_text() == f"199\n0,0\n{last},{segment(tmp_path, last).stat().st_size}\n"


def test_an_empty_queue_has_metadata_alone(tmp_path):
    write_queue(tmp_path, "t", [])
    assert snapshot(tmp_path).keys() == {"t.diskqueue.meta.dat"}
    assert (tmp_path / "t.diskqueue.meta.dat").read_text() == "0\n0,0\n0,0\n"
    assert read(tmp_path) == ([], [])


def test_a_record_larger_than_a_segment_is_alone_in_one(tmp_path):
    content = [message(1), message(2, body=b"x" * 500), message(3)]
    write_queue(tmp_path, "t", content, segment_bytes_max=100)
    assert read(tmp_path) == (content, [])
    assert segment(tmp_path, 1).stat().st_size == 530


def test_reading_begins_at_the_read_place(tmp_path):
    write_queue(tmp_path, "t", messages(0, 1, 2, 3), segment_bytes_max=2 * RECORD_BYTES)
    segment(tmp_path, 0).unlink()
    write_meta(tmp_path, f"1\n1,{RECORD_BYTES}\n1,{2 * RECORD_BYTES}\n")
    assert read(tmp_path) == (messages(3), [])


def test_messages_after_the_write_position_are_read(tmp_path):
    write_queue(tmp_path, "t", messages(0, 1, 2, 3, 4), segment_bytes_max=2 * RECORD_BYTES)
    write_meta(tmp_path, f"1\n0,0\n0,{RECORD_BYTES}\n")
    found, notes = read(tmp_path)
    assert found == messages(0, 1, 2, 3, 4)
    assert notes[0] == f"{4 * RECORD_BYTES} bytes lie behind the write place of its metadata: taken"
    assert notes[1] == "5 messages were read, its metadata says 1"


def test_a_queue_that_was_read_to_its_end_and_written_since_is_salvaged(tmp_path):
    write_queue(tmp_path, "t", messages(0, 1))
    write_meta(tmp_path, f"0\n0,{RECORD_BYTES}\n0,{RECORD_BYTES}\n")
    assert read(tmp_path)[0] == messages(1)


@pytest.mark.parametrize("meta", [None, "", "nonsense", "1\n9,0\n1,0\n"])
def test_without_metadata_every_segment_is_read(tmp_path, meta):
    write_queue(tmp_path, "t", messages(0, 1, 2), segment_bytes_max=RECORD_BYTES)
    (tmp_path / "t.diskqueue.meta.dat").unlink()
    if meta is not None:
        write_meta(tmp_path, meta)
    found, notes = read(tmp_path)
    assert found == messages(0, 1, 2)
    assert "metadata: all its segments are taken" in notes[0]


@pytest.mark.parametrize("size", [b"\0\0\0\0", b"\0\0\0\x19", b"\xff\xff\xff\xff", b"\x7f\0\0\0"])
def test_a_size_that_cannot_be_ends_its_segment_and_not_the_queue(tmp_path, size):
    write_queue(tmp_path, "t", messages(0, 1, 2, 3), segment_bytes_max=3 * RECORD_BYTES)
    content = bytearray(segment(tmp_path, 0).read_bytes())
    content[RECORD_BYTES : RECORD_BYTES + 4] = size
    segment(tmp_path, 0).write_bytes(content)
    found, notes = read(tmp_path)
    assert found == messages(0, 3)
    assert f"no record at offset {RECORD_BYTES}: the rest of the segment, {2 * RECORD_BYTES} bytes" in notes[0]
    assert notes[1] == "2 messages were read, its metadata says 4"


def test_a_torn_record_at_the_end_is_skipped(tmp_path):
    for kept in range(RECORD_BYTES):
        write_queue(tmp_path, "t", messages(0, 1))
        whole = segment(tmp_path, 0).read_bytes()
        segment(tmp_path, 0).write_bytes(whole[: RECORD_BYTES + kept])
        found, notes = read(tmp_path)
        assert found == messages(0)
        assert len(notes) == (2 if kept else 1)
        segment(tmp_path, 0).unlink()


def test_missing_segments_are_noted(tmp_path):
    write_queue(tmp_path, "t", messages(0, 1, 2, 3), segment_bytes_max=RECORD_BYTES)
    segment(tmp_path, 0).unlink()
    segment(tmp_path, 2).unlink()
    found, notes = read(tmp_path)
    assert found == messages(1, 3)
    assert notes[0] == "2 of its segments are missing"


def test_queues_are_separated_from_other_files_of_a_directory(tmp_path):
    for name in ("a.diskqueue.000001.dat", "a.diskqueue.000000.dat.bad", "a:c.diskqueue.meta.dat", "nsqd.dat", "notes"):
        (tmp_path / name).write_bytes(b"")
    directory = NsqdDirectory(Files(), str(tmp_path))
    assert directory.segments == {"a": [1], "a:c": []}
    assert directory.bad == ["a.diskqueue.000000.dat.bad"]
    assert directory.originals == sorted(
        ["a.diskqueue.000001.dat", "a.diskqueue.000000.dat.bad", "a:c.diskqueue.meta.dat", "nsqd.dat"]
    )


def test_a_window_gives_every_stretch_of_a_file(tmp_path):
    content = bytes(range(256)) * 4
    (tmp_path / "f").write_bytes(content)
    window = Window(Files(), str(tmp_path / "f"), window_bytes=100)
    for offset, count in [(0, 10), (50, 50), (90, 20), (95, 300), (0, 1), (1000, 100), (2000, 5)]:
        assert window.read(offset, count) == content[offset : offset + count]
