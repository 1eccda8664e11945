"""Errors for a program that uses one face of the client like the other: `with` for `async with`, or the reverse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

OF_ASYNCIO = "is for asyncio: write `async with` and `async for`, or import the one of pyqd.client"
OF_BLOCKING = "is for blocking code: write `with` and `for`, or import the one of pyqd.client.aio"


class OneFace:
    """Base of producers and consumers: each method raises a TypeError, unless the face has its own.

    Python's own error does not name the other face. Type checkers do not see the methods, and report the mistake.
    """

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            self._refuse(OF_ASYNCIO)

        def __exit__(self, *_: Any) -> NoReturn:
            self._refuse(OF_ASYNCIO)

        async def __aenter__(self) -> NoReturn:
            self._refuse(OF_BLOCKING)

        async def __aexit__(self, *_: Any) -> NoReturn:
            self._refuse(OF_BLOCKING)

        def _refuse(self, advice: str) -> NoReturn:
            raise TypeError(f"this {type(self).__name__} {advice}")


class OneFaceIterable(OneFace):
    """Base of consumers, which are iterated in addition."""

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            self._refuse(OF_ASYNCIO)

        def __aiter__(self) -> NoReturn:
            self._refuse(OF_BLOCKING)
