"""Forms of brokers' answers, checked where they come in: an odd answer is a failure of its broker only."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyqd.client.errors import ClientError
from pyqd.primitives.peer_json import json_text

INTEGER_MAX: Final = 1 << 64
NUMBER: Final = (int, float)
OPTIONAL_NUMBER: Final = (int, float, type(None))
OPTIONAL_TEXT: Final = (str, type(None))
ANY: Final = (object,)

Shape = Mapping[str, tuple[type, ...]]


class ShapeError(ClientError, ValueError):
    """An answer has another form than that of a broker."""


def parse_answer(body: bytes) -> Any:
    """Return the value of a JSON text whose numbers can be counted with. Raises: ValueError, RecursionError."""
    return json.loads(json_text(body), parse_int=integer, parse_float=real, parse_constant=refuse_constant)


def integer(text: str) -> int:
    """Return an integer of 64 bits. Raises: ValueError for a longer one."""
    value = int(text) if len(text) <= 20 else INTEGER_MAX
    if not -INTEGER_MAX < value < INTEGER_MAX:
        raise ValueError(f"a number of {len(text)} digits")
    return value


def real(text: str) -> float:
    """Return a number with a fraction or an exponent. Raises: ValueError for one beyond all floats."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is no number")
    return value


def refuse_constant(text: str) -> Any:
    """Refuse what is no number. Raises: ValueError."""
    raise ValueError(f"{text} is no number")


def check_shape(found: Any, shape: Shape) -> None:
    """Check the fields of an object. Raises: ShapeError for a field that is missing or of another type."""
    if not isinstance(found, dict):
        raise ShapeError(f"{found!r:.100} is no object")
    for name, types in shape.items():
        if name not in found or not isinstance(found[name], types):
            shown = f"{found[name]!r:.100}" if name in found else "missing"
            raise ShapeError(f"{name} is {shown}")


@contextlib.contextmanager
def answer_of(node: str, kind: type[ClientError]) -> Iterator[None]:
    """Raise an error that names the broker if a block finds its answer to be of another form."""
    try:
        yield
    except kind:
        raise
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        reason = str(error) if isinstance(error, ShapeError) else repr(error)
        raise kind(f"{node}: not the answer of a pyqd: {reason}") from None
