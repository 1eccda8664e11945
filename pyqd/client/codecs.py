"""Codecs between values and bodies: JSON, MessagePack, pydantic models.

A codec is any object with encode(value) -> bytes and decode(body) -> value, so that a program can have its own. The
packages for MessagePack and pydantic are optional, and imported when a codec is made.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any, Final, Protocol

from pyqd.client.errors import CodecError, SettingError


class Codec(Protocol):
    """Translates between values and bodies. Both methods raise CodecError."""

    def encode(self, value: Any) -> bytes: ...
    def decode(self, body: bytes) -> Any: ...


class JsonCodec:
    """JSON in UTF-8, without spaces. default: turns a value of another type into one that JSON has."""

    def __init__(self, default: Callable[[Any], Any] | None = None) -> None:
        self._encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default)

    def encode(self, value: Any) -> bytes:
        """Return the body of a value. Raises: CodecError."""
        try:
            return self._encoder.encode(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise CodecError(f"cannot encode {_kind(value)} as JSON: {error}") from error

    def decode(self, body: bytes) -> Any:
        """Return the value of a body. Raises: CodecError."""
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise CodecError(f"a body of {len(body)} bytes is not JSON: {error}") from error


class MsgpackCodec:
    """MessagePack, with aware datetimes as its timestamps. Raises: SettingError without the package msgpack."""

    def __init__(self) -> None:
        self._msgpack = _package("msgpack", "msgpack")

    def encode(self, value: Any) -> bytes:
        """Return the body of a value. Raises: CodecError."""
        try:
            return bytes(self._msgpack.packb(value, datetime=True))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CodecError(f"cannot encode {_kind(value)} as MessagePack: {error}") from error

    def decode(self, body: bytes) -> Any:
        """Return the value of a body. Raises: CodecError."""
        try:
            # 3: timestamps are aware datetimes.
            return self._msgpack.unpackb(body, timestamp=3, strict_map_key=False)
        except (TypeError, ValueError, OverflowError, self._msgpack.UnpackException) as error:
            reason = str(error) or type(error).__name__
            raise CodecError(f"a body of {len(body)} bytes is not MessagePack: {reason}") from error


class PydanticCodec:
    """JSON of one pydantic model, or of any other type that pydantic knows, such as list[Model].

    Values are checked in both directions; encode() also takes values that the model accepts, such as a dict. Names are
    the model's aliases. Raises: SettingError without the package pydantic, and for a type that it does not know.
    """

    def __init__(self, model: Any) -> None:
        pydantic = _package("pydantic", "pydantic")
        self._name = getattr(model, "__name__", str(model))
        self._invalid: type[Exception] = pydantic.ValidationError
        try:
            self._adapter = pydantic.TypeAdapter(model)
        except pydantic.PydanticUserError as error:
            raise SettingError(f"codec={self._name}: {error.message}") from error

    def encode(self, value: Any) -> bytes:
        """Return the body of a value. Raises: CodecError."""
        try:
            return bytes(self._adapter.dump_json(self._adapter.validate_python(value), by_alias=True))
        except self._invalid as error:
            raise CodecError(f"{_kind(value)} is no {self._name}: {_reasons(error)}") from error
        except ValueError as error:
            raise CodecError(f"cannot encode {_kind(value)} as JSON: {error}") from error

    def decode(self, body: bytes) -> Any:
        """Return the value of a body. Raises: CodecError."""
        try:
            return self._adapter.validate_json(body)
        except self._invalid as error:
            raise CodecError(f"a body of {len(body)} bytes is no {self._name}: {_reasons(error)}") from error


# Values of the option `codec`: see codec_of().
CodecOption = Codec | str | type[Any] | None

NAMED: Final[dict[str, Callable[[], Codec]]] = {"json": JsonCodec, "msgpack": MsgpackCodec}


def codec_of(given: CodecOption) -> Codec | None:
    """Return the codec for the option `codec`; None for bodies of bytes. Raises: SettingError.

    given: "json", "msgpack", a pydantic model, a codec, or None.
    """
    if given is None:
        return None
    if isinstance(given, str):
        if given not in NAMED:
            raise SettingError(f"codec={given!r}: there are {' and '.join(map(repr, NAMED))}")
        return NAMED[given]()
    if hasattr(given, "model_validate_json"):
        return PydanticCodec(given)
    if isinstance(given, type) or not all(callable(getattr(given, name, None)) for name in ("encode", "decode")):
        raise SettingError(f"codec={given!r}: expected a name, a pydantic model, or an object with encode and decode")
    codec: Codec = given
    return codec


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise SettingError(f"{name} needs a package: pip install 'pyqd-client[{extra}]'") from None


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def _reasons(error: Any) -> str:
    """Return the reasons of pydantic without the values: these may be secret, and errors are logged."""
    return "; ".join(
        f"{'.'.join(map(str, reason['loc']))}: {reason['msg']}" if reason["loc"] else str(reason["msg"])
        for reason in error.errors(include_url=False, include_input=False, include_context=False)
    )
