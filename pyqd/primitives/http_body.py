"""Body of an HTTP answer with a limit of its size."""

from __future__ import annotations

import http.client


def read_body(answer: http.client.HTTPResponse, bytes_max: int) -> bytes:
    """Return the body of an answer, or its first `bytes_max + 1` bytes if it is longer.

    Raises: OSError; http.client.HTTPException, such as IncompleteRead if the connection ends before the body does.
    """
    data = answer.read(bytes_max + 1)
    # http.client checks the announced length only in a read without an amount.
    if len(data) <= bytes_max and answer.length:
        raise http.client.IncompleteRead(data, answer.length)
    return data
