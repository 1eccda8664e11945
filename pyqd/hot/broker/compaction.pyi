from collections.abc import Container

from pyqd.hot.broker.topic import TopicCore
from pyqd.hot.diskqueue.rewrite import Rewrite

def next_rewrite(
    topic: TopicCore, start: int, end: int, stopped_ns: int, refused: Container[int]
) -> tuple[Rewrite | None, int]: ...
def replace_segments(topic: TopicCore, rewrite: Rewrite, retained_from: int) -> bool: ...
