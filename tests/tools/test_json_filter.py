"""Filters of messages in JSON."""

from __future__ import annotations

import pytest

from pyqd.tools.json_filter import JsonFilter, NoJsonObjectError, Verdict, decode_object, encode_object


@pytest.mark.parametrize("body", [b"", b"no", b"[1]", b'"a"', b"1", b"true", b'{"a": NaN}', b"{'a': 1}", b'{"a":1} x',
                                  b'{"a": 1e400}', b"[" * 100_000])  # fmt: skip
def test_what_is_no_object_is_an_error(body):
    with pytest.raises(NoJsonObjectError):
        decode_object(body)


def test_null_is_an_object_without_fields():
    assert decode_object(b"null") == {}


@pytest.mark.parametrize(
    ("field", "value", "body", "verdict"),
    [
        ("a", "", b'{"a": null}', Verdict.PASS),
        ("a", "", b'{"b": 1}', Verdict.DROP),
        ("a", "x", b'{"b": 1}', Verdict.REQUEUE),
        ("a", "x", b'{"a": "x"}', Verdict.PASS),
        ("a", "x", b'{"a": "X"}', Verdict.DROP),
        ("a", "1", b'{"a": "1"}', Verdict.PASS),
        ("a", "1", b'{"a": 1}', Verdict.PASS),
        ("a", "1.0", b'{"a": 1}', Verdict.PASS),
        ("a", "1.0", b'{"a": "1"}', Verdict.DROP),
        ("a", "1e2", b'{"a": 100.0}', Verdict.PASS),
        ("a", "-.5", b'{"a": -0.5}', Verdict.PASS),
        ("a", "1_0", b'{"a": 10}', Verdict.DROP),
        ("a", "x", b'{"a": 1}', Verdict.DROP),
        ("a", "1", b'{"a": true}', Verdict.DROP),
        ("a", "true", b'{"a": true}', Verdict.DROP),
        ("a", "x", b'{"a": null}', Verdict.DROP),
        ("a", "x", b'{"a": ["x"]}', Verdict.DROP),
        ("a", "inf", b'{"a": 1%s}' % (b"0" * 400), Verdict.DROP),
        ("", "x", b'{"b": 1}', Verdict.PASS),
    ],
)
def test_a_field_and_its_value_decide(field, value, body, verdict):
    assert JsonFilter(field, value, ()).apply(body) == (verdict, body)


@pytest.mark.parametrize(
    ("kept", "body", "expected"),
    [
        (("b", "a"), b'{"a":1, "b":"x", "c":2}', b'{"a":1,"b":"x"}'),
        (("x",), b'{"a":1}', b"{}"),
        (("a",), b'{"a":1.0}', b'{"a":1}'),
        (("a",), b'{"a":1.5}', b'{"a":1.5}'),
        (("a",), b'{"a":[2.0,{"z":1,"b":3.0}]}', b'{"a":[2,{"b":3,"z":1}]}'),
        (("a",), b'{"a":9007199254740993}', b'{"a":9007199254740993}'),
        (("a",), b'{"a":1e300}', b'{"a":1e+300}'),
        (("a",), '{"a":"é<&>\\u2028"}'.encode(), '{"a":"é\\u003c\\u0026\\u003e\\u2028"}'.encode()),
        (("a",), b'{"a":"\\ud800"}', '{"a":"\ufffd"}'.encode()),
        (("a",), b'{"a":"\\ud83d\\ude00"}', '{"a":"😀"}'.encode()),
        (("a",), b'{"a":"\xff"}', '{"a":"\ufffd"}'.encode()),
        (("a",), b'{"a":1,"a":2}', b'{"a":2}'),
    ],
)
def test_listed_fields_are_kept_and_sorted(kept, body, expected):
    assert JsonFilter("", "", kept).apply(body) == (Verdict.PASS, expected)


def test_without_options_there_is_nothing_to_filter():
    assert JsonFilter("", "", ()).is_active is False
    assert JsonFilter("a", "", ()).is_active is True
    assert JsonFilter("", "", ("a",)).is_active is True


def test_an_object_is_written_without_spaces():
    assert encode_object({"b": [1, 2], "a": None}) == b'{"a":null,"b":[1,2]}'
