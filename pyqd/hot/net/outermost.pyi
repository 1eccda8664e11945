from collections.abc import Callable
from typing import Any, TypeVar

_R = TypeVar("_R")

def outermost(function: Callable[..., _R], *args: Any) -> _R: ...
