from typing import final

from pyqd.hot.broker.consumer import Consumer
from pyqd.hot.broker.rate_limit import RateLimit

@final
class Dispatcher:
    @property
    def consumers(self) -> list[Consumer]: ...
    @property
    def rate_limit(self) -> RateLimit | None: ...
