from typing import final

from pyqd.hot.broker.consumer import Consumer
from pyqd.hot.broker.rate_limit import RateLimit
from pyqd.hot.diskqueue.ledger import Ledger

@final
class Dispatcher:
    @property
    def consumers(self) -> list[Consumer]: ...
    @property
    def rate_limit(self) -> RateLimit | None: ...
    def grow_ahead(self, ledger: Ledger, next_try: int) -> None: ...
    def grow_to_finish_lost(self) -> None: ...
