"""Delivery of a message: the choice of an address, and retries with back-off.

Source: docs/tools/pyq_to_http.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyqd.primitives.backoff import Backoff
from pyqd.tools.status_lines import status_lines
from pyqd.tools.targets import Targets
from pyqd.tools.to_http.sender import DeliveryError, DeliveryRequest, Sender, deliver

RETRY_DELAY_MAX_S: Final = 10.0


@dataclass(frozen=True)
class Retries:
    """Number of retries, and the delay before the first one; it doubles with each."""

    count: int
    delay_s: float


class Delivery:
    """Delivers messages to one address, or to all of them if there are no targets to choose from.

    requests: by address, a function from a message to its request.
    """

    def __init__(
        self,
        sender: Sender,
        addresses: Sequence[str],
        requests: Sequence[Callable[[bytes], DeliveryRequest]],
        targets: Targets | None,
        retries: Retries,
        status_every: int,
    ) -> None:
        self._sender = sender
        self._requests = requests
        self._targets = targets
        self._retries = retries
        self._all_status, self._status = status_lines(status_every, addresses)

    async def deliver(self, body: bytes) -> None:
        """Deliver a message. Raises: DeliveryError; some of all addresses may have it then."""
        began_s = time.monotonic()
        if self._targets is not None:
            await self._with_retries(self._to_one, self._targets, body)
        else:
            for target in range(len(self._requests)):
                await self._with_retries(self._to, target, body)
        self._all_status.note(time.monotonic() - began_s)

    async def _to_one(self, targets: Targets, body: bytes) -> None:
        began_s = time.monotonic()
        target = targets.choose(began_s)
        try:
            await self._to(target, body)
        except DeliveryError:
            targets.note(target, time.monotonic(), None)
            raise
        now_s = time.monotonic()
        targets.note(target, now_s, now_s - began_s)

    async def _to(self, target: int, body: bytes) -> None:
        began_s = time.monotonic()
        await deliver(self._sender, self._requests[target](body))
        self._status[target].note(time.monotonic() - began_s)

    async def _with_retries(self, attempt: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Repeat an attempt that fails in a way that may pass. Raises: DeliveryError of the last one."""
        delays = Backoff(self._retries.delay_s, RETRY_DELAY_MAX_S)
        for left in range(self._retries.count, -1, -1):
            try:
                await attempt(*arguments)
                return
            except DeliveryError as error:
                if not left or not error.may_pass:
                    raise
            await asyncio.sleep(delays.next_s())
