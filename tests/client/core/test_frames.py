"""The two decoders of frames, compiled and in plain Python: one set of tests for both."""

import array
import struct

import pytest

from pyqd.client.core import connection
from pyqd.client.errors import ProtocolError
from pyqd.fallback import client_frames as client_frames_in_python
from pyqd.hot.wire import client_frames

ID = b"0123456789abcdef"
OK = b"\0\0\0\6\0\0\0\0OK"
ERROR = b"\0\0\0\15\0\0\0\1E_INVALID"
MESSAGE = b"\0\0\0\43\0\0\0\2\0\0\0\0\0\0\1\2\1\1" + ID + b"hello"
EMPTY = b"\0\0\0\4\0\0\0\0"
WITHOUT_BODY = b"\0\0\0\36\0\0\0\2\377\377\377\377\377\377\377\377\377\377" + ID
STREAM = OK + ERROR + MESSAGE + EMPTY + WITHOUT_BODY + MESSAGE
FRAMES = [
    (0, b"OK"),
    (1, b"E_INVALID"),
    (2, 258, 257, ID, b"hello"),
    (0, b""),
    (2, -1, 65535, ID, b""),
    (2, 258, 257, ID, b"hello"),
]


@pytest.fixture(params=[client_frames, client_frames_in_python], ids=["compiled", "plain"])
def make_reader(request):
    def make(frame_bytes_max=connection.FRAME_BYTES_MAX):
        return request.param.FrameSplitter(frame_bytes_max, ProtocolError)

    return make


def frame(frame_type, data):
    return struct.pack(">ii", 4 + len(data), frame_type) + data


def test_the_compiled_decoder_is_used_where_it_is_installed():
    assert vars(connection)["FrameSplitter"] is client_frames.FrameSplitter


def test_a_whole_stream_becomes_its_frames_in_order(make_reader):
    assert make_reader().feed(STREAM) == FRAMES


def test_a_stream_that_comes_byte_by_byte_becomes_the_same_frames(make_reader):
    reader = make_reader()
    assert [found for byte in STREAM for found in reader.feed(bytes([byte]))] == FRAMES


def test_a_stream_may_be_split_anywhere(make_reader):
    for at in range(len(STREAM) + 1):
        reader = make_reader()
        assert reader.feed(STREAM[:at]) + reader.feed(STREAM[at:]) == FRAMES


def test_a_stream_may_be_split_at_any_two_places(make_reader):
    stream = OK + MESSAGE + ERROR
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            reader = make_reader()
            parts = (stream[:first], stream[first:second], stream[second:])
            assert [found for part in parts for found in reader.feed(part)] == [FRAMES[0], FRAMES[2], FRAMES[1]]


def test_an_incomplete_frame_waits_for_its_rest(make_reader):
    for kept in range(1, len(MESSAGE)):
        reader = make_reader()
        assert reader.feed(OK + MESSAGE[:kept]) == FRAMES[:1]
        assert reader.feed(b"") == []
        assert reader.feed(MESSAGE[kept:]) == FRAMES[2:3]


def test_no_frame_follows_a_complete_one_without_more_bytes(make_reader):
    reader = make_reader()
    reader.feed(STREAM)
    assert reader.feed(b"") == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: array.array("H", data)])
def test_any_object_with_a_buffer_is_taken(make_reader, kind):
    reader = make_reader()
    assert reader.feed(kind(STREAM + ERROR[:1])) == FRAMES
    assert reader.feed(kind(ERROR[1:])) == FRAMES[1:2]


def test_frames_are_independent_of_the_buffer_that_they_came_in(make_reader):
    reader = make_reader()
    buffer = bytearray(STREAM + MESSAGE[:30])
    found = reader.feed(buffer)
    buffer[:] = bytes(len(buffer))
    assert found + reader.feed(MESSAGE[30:]) == [*FRAMES, FRAMES[2]]


def test_ids_and_bodies_are_bytes(make_reader):
    (message,) = make_reader().feed(bytearray(MESSAGE))
    assert [type(part) for part in message] == [int, int, int, bytes, bytes]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\0\0\3\0\0\0", "a frame of 3 bytes"),
        (b"\0\0\0\0", "a frame of 0 bytes"),
        (b"\377\377\377\377\0\0\0\0", "a frame of -1 bytes"),
        (b"\0\0\4\1\0\0\0\0", "a frame of 1025 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n", "a frame of 1213486160 bytes; is this NSQ's TCP port?"),
        (frame(3, b"data"), "a frame of the unknown type 3"),
        (frame(-1, b"data"), "a frame of the unknown type -1"),
        (frame(2, bytes(25)), "a message of 25 bytes"),
        (frame(2, b""), "a message of 0 bytes"),
    ],
)
class TestMalformed:
    def test_a_malformed_frame_is_an_error_with_its_size(self, make_reader, data, text):
        with pytest.raises(ProtocolError, match=text.replace("?", r"\?")):
            make_reader(1024).feed(data)

    def test_it_is_noticed_behind_complete_frames_too(self, make_reader, data, text):
        reader = make_reader(1024)
        assert reader.feed(STREAM) == FRAMES
        with pytest.raises(ProtocolError, match=text.replace("?", r"\?")):
            reader.feed(OK + data)

    def test_it_is_noticed_byte_by_byte_as_early_as_its_header_shows_it(self, make_reader, data, text):
        reader = make_reader(1024)
        header_bytes = 4 if "a frame of" in text and "type" not in text else 8
        for byte in data[: header_bytes - 1]:
            assert reader.feed(bytes([byte])) == []
        with pytest.raises(ProtocolError, match=text.replace("?", r"\?")):
            reader.feed(data[header_bytes - 1 : header_bytes])

    def test_nothing_is_decoded_after_it(self, make_reader, data, text):
        reader = make_reader(1024)
        for more in (data, OK, b""):
            with pytest.raises(ProtocolError, match=text.replace("?", r"\?")):
                reader.feed(more)


def test_a_frame_may_have_the_largest_size(make_reader):
    data = bytes(1020)
    assert make_reader(1024).feed(frame(0, data)) == [(0, data)]


def test_a_large_frame_in_small_pieces_is_copied_a_bounded_number_of_times(make_reader):
    # A copy of all that has come with each piece would be 16 GB here: minutes instead of milliseconds.
    body = bytes(1 << 23)
    stream = frame(2, struct.pack(">qH16s", 5, 1, ID) + body) + OK
    reader = make_reader()
    pieces = [stream[at : at + 2048] for at in range(0, len(stream), 2048)]
    found = [one for piece in pieces for one in reader.feed(piece)]
    assert found == [(2, 5, 1, ID, body), (0, b"OK")]
