"""Encoder of frames: messages, responses and errors as bytes.

    | size: int32 | type: int32 | data |                    size counts the type and the data
    message data: | timestamp: int64 ns | attempts: uint16 | id: 16 hex digits | body |

All numbers are big-endian. The functions are inline, in the interface file; here is their Python face, for tests and
for clients. Source: docs/nsq/tcp-protocol.md, "Server to client framing".
"""

assert MESSAGE_HEADER_BYTES == 8 + 2 + 16


def error_frame(bytes data not None):
    """Return a whole error frame."""
    return frame(FRAME_ERROR, data)


def frame(int frame_type, bytes data not None):
    """Return a whole frame. frame_type: 0 response, 1 error, 2 message."""
    out = bytearray(FRAME_HEADER_BYTES + len(data))
    put_frame(out, <FrameType> frame_type, data, <uint32_t> len(data))
    return bytes(out)
