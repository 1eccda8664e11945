"""Tests of pyqd.hot.wire.frames."""

import struct

import pytest

from pyqd.hot.wire.frames import frame


@pytest.mark.parametrize("frame_type", [0, 1, 2])
@pytest.mark.parametrize("data", [b"", b"OK", b"_heartbeat_", b"\x00\xff" * 50_000])
def test_a_frame_is_size_type_and_data(frame_type, data):
    assert frame(frame_type, data) == struct.pack(">ii", len(data) + 4, frame_type) + data
