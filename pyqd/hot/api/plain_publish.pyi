from collections.abc import Callable

from pyqd.hot.broker.topic import TopicCore
from pyqd.hot.http.front import ShortPath
from pyqd.primitives.nsq_compat import API_VERSION_HEADER as API_VERSION_HEADER

class PlainPublisher(ShortPath):
    def __init__(
        self,
        msg_bytes_max: int,
        body_bytes_max: int,
        batch_count_max: int,
        find_topic: Callable[[bytes], TopicCore | None],
        remote: str = "",
        accepts_host: Callable[[str], bool] | None = None,
    ) -> None: ...
