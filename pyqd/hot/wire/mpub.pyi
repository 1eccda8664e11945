from typing_extensions import Buffer

def command(
    head: bytes,
    offsets: Buffer,
    data: Buffer,
    first: int,
    end: int,
    body_bytes_max: int,
    *,
    offset_bytes: int = 4,
    times: Buffer | None = None,
    prefix: bytes = b"",
    number: int = 0,
) -> tuple[bytes, int]: ...
