"""Codecs of bodies: round trips, errors, and the packages that they need."""

from __future__ import annotations

import asyncio
import datetime
import sys

import pydantic
import pytest

import pyqd.client
from pyqd.client import aio
from pyqd.client.codecs import JsonCodec, MsgpackCodec, PydanticCodec, codec_of
from pyqd.client.errors import CodecError, SettingError

NOON = datetime.datetime(2026, 11, 23, 12, tzinfo=datetime.timezone.utc)
DEEP = b"[" * 100_000 + b"]" * 100_000


class Order(pydantic.BaseModel):
    """A model with an alias, a limit and a type that JSON lacks."""

    number: int = pydantic.Field(alias="no")
    weight: float = pydantic.Field(default=1.0, gt=0)
    at: datetime.datetime = NOON


VALUES = [None, True, 0, -1.5, "caf\u00e9", [], {"a": [1, {"b": None}]}, ["x"] * 1000]


@pytest.mark.parametrize("codec", [JsonCodec(), MsgpackCodec()], ids=["json", "msgpack"])
@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_value_survives_the_way_through_a_body(codec, value):
    assert codec.decode(codec.encode(value)) == value


def test_json_is_compact_and_utf8():
    assert JsonCodec().encode({"a": [1, 2], "b": "\u00e9"}) == b'{"a":[1,2],"b":"\xc3\xa9"}'


def test_json_takes_a_function_for_other_types():
    assert JsonCodec(default=lambda value: value.isoformat()).encode([NOON]) == b'["2026-11-23T12:00:00+00:00"]'


@pytest.mark.parametrize("value", [b"bytes", NOON, float("nan"), {1, 2}, "\ud800"], ids=repr)
def test_a_value_that_json_does_not_have_is_an_error(value):
    with pytest.raises(CodecError, match=f"cannot encode a value of type {type(value).__name__} as JSON"):
        JsonCodec().encode(value)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"nul", DEEP], ids=["empty", "open", "binary", "word", "deep"]
)
def test_a_body_that_is_not_json_is_an_error_with_its_size(body):
    with pytest.raises(CodecError, match=f"a body of {len(body)} bytes is not JSON"):
        JsonCodec().decode(body)


@pytest.mark.parametrize("value", [b"\x00\xff", NOON, {1: "int keys"}, {"k": b"v"}, 2**64 - 1], ids=repr)
def test_msgpack_carries_bytes_times_and_any_keys(value):
    codec = MsgpackCodec()
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("value", [object(), 2**64, NOON.replace(tzinfo=None)], ids=["object", "int", "naive"])
def test_a_value_that_msgpack_does_not_have_is_an_error(value):
    with pytest.raises(CodecError, match="as MessagePack"):
        MsgpackCodec().encode(value)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x92\x01", b"\x01\x01", b"\xa1\xff", b"\x81\x90\x01", b"\x91" * 100_000],
    ids=["empty", "reserved", "short", "long", "text", "key", "deep"],
)
def test_a_body_that_is_not_msgpack_is_an_error_with_its_size(body):
    with pytest.raises(CodecError, match=f"a body of {len(body)} bytes is not MessagePack: .+"):
        MsgpackCodec().decode(body)


class TestPydantic:
    def test_a_model_survives_the_way_through_a_body(self):
        codec = PydanticCodec(Order)
        order = Order(no=7, weight=2.5)
        assert codec.decode(codec.encode(order)) == order

    def test_its_body_is_json_by_alias(self):
        assert PydanticCodec(Order).encode({"no": 7}) == b'{"no":7,"weight":1.0,"at":"2026-11-23T12:00:00Z"}'

    def test_other_types_have_a_codec_too(self):
        codec = PydanticCodec(list[Order])
        assert codec.decode(codec.encode([Order(no=1)])) == [Order(no=1)]

    @pytest.mark.parametrize("value", [{"no": "secret"}, {"no": 7, "weight": 0}, {}, None], ids=str)
    def test_a_value_that_is_no_model_is_an_error_without_its_content(self, value):
        with pytest.raises(CodecError, match="is no Order: ") as raised:
            PydanticCodec(Order).encode(value)
        assert "secret" not in str(raised.value)

    @pytest.mark.parametrize("body", [b'{"no":"secret"}', b"{", b"", b"\xff"], ids=["value", "open", "empty", "binary"])
    def test_a_body_that_is_no_model_is_an_error_without_its_content(self, body):
        with pytest.raises(CodecError, match=f"a body of {len(body)} bytes is no Order: .+") as raised:
            PydanticCodec(Order).decode(body)
        assert "secret" not in str(raised.value)

    def test_the_error_names_the_field(self):
        with pytest.raises(CodecError, match="weight: Input should be greater than 0"):
            PydanticCodec(Order).decode(b'{"no":1,"weight":-1}')

    def test_a_type_that_pydantic_does_not_know_is_refused_at_once(self):
        with pytest.raises(SettingError, match="codec=Codeless"):
            PydanticCodec(type("Codeless", (), {}))


class TestOption:
    @pytest.mark.parametrize(
        ("given", "kind"), [("json", JsonCodec), ("msgpack", MsgpackCodec), (Order, PydanticCodec)]
    )
    def test_a_name_or_a_model_stands_for_its_codec(self, given, kind):
        assert type(codec_of(given)) is kind

    def test_bodies_stay_bytes_without_the_option(self):
        assert codec_of(None) is None

    def test_an_own_codec_is_taken_as_it_is(self):
        codec = JsonCodec()
        assert codec_of(codec) is codec

    @pytest.mark.parametrize("given", ["yaml", 7, object(), JsonCodec, dict])
    def test_anything_else_is_refused(self, given):
        with pytest.raises(SettingError, match="codec="):
            codec_of(given)


@pytest.mark.parametrize(
    ("package", "make"),
    [("msgpack", MsgpackCodec), ("pydantic", lambda: PydanticCodec(Order))],
    ids=["msgpack", "pydantic"],
)
def test_the_error_for_a_missing_package_names_the_extra(monkeypatch, package, make):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SettingError, match=rf"pip install 'pyqd-client\[{package}\]'"):
        make()


@pytest.mark.parametrize("face", [pyqd.client, aio], ids=["blocking", "asyncio"])
def test_producers_and_consumers_take_a_codec_by_its_name(face):
    producer = face.Producer("127.0.0.1:1", codec="json")
    consumer = face.Consumer("orders", "email", nsqd="127.0.0.1:1", codec=Order)
    try:
        assert type(producer.codec) is JsonCodec
        with pytest.raises(SettingError, match="codec='yaml'"):
            face.Producer("127.0.0.1:1", codec="yaml")
        with pytest.raises(SettingError, match="codec='yaml'"):
            face.Consumer("orders", "email", nsqd="127.0.0.1:1", codec="yaml")
    finally:
        for made in (producer, consumer):
            closing = made.close()
            if closing is not None:
                asyncio.run(closing)
