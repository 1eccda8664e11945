"""Forms of NSQ's answers over HTTP."""

import pytest

from pyqd.primitives.nsq_compat import https_port_in, status_line, unwrapped_answer


@pytest.mark.parametrize(
    ("body", "port"),
    [
        (b'{"message": "TLS_REQUIRED", "https_port": 4152}', 4152),
        (b'{"https_port": 0}', 0),
        (b'{"https_port": 70000}', 0),
        (b'{"https_port": "4152"}', 0),
        (b"{}", 0),
        (b"[]", 0),
        (b"Forbidden", 0),
        (b"[" * 100_000, 0),
    ],
)
def test_the_port_of_https_is_read_from_a_refusal(body: bytes, port: int) -> None:
    assert https_port_in(body) == port


def test_an_answer_of_before_version_1_is_unwrapped() -> None:
    assert unwrapped_answer({"status_code": 200, "status_txt": "OK", "data": {"topics": []}}) == {"topics": []}
    assert unwrapped_answer({"status_code": 500, "status_txt": "NO", "data": None}) == {}
    assert unwrapped_answer({"topics": []}) == {"topics": []}


def test_a_status_has_its_phrase_if_there_is_one() -> None:
    assert (status_line(403), status_line(799)) == ("403 Forbidden", "799")
