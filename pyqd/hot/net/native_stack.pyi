from collections.abc import Callable
from typing import Any, TypeVar

_R = TypeVar("_R")

def call_at_root(function: Callable[..., _R], *args: Any) -> _R: ...
