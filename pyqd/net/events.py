"""Events of libev that a watcher waits for. Compiled code has the same numbers in pyqd/hot/net/sockets.pxd."""

from typing import Final

READ_EVENT: Final = 1
WRITE_EVENT: Final = 2
