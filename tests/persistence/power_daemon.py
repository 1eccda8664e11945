"""The daemon on a disk that forgets. Arguments: directory for the state after a power cut, then the daemon's flags.

SIGUSR1 cuts the power and ends the process; SIGUSR2 lets syncs fail, and the next one lets them succeed again. Prints
its ports once it listens.
"""

import os
import signal
import sys
from pathlib import Path

import gevent

from pyqd.apps.daemon import Daemon
from pyqd.config.options import parse_args
from tests.support.power import PowerFiles


def main() -> None:
    target, *flags = sys.argv[1:]
    options = parse_args(flags)
    files = PowerFiles(Path(options.data_path), "before")
    daemon = Daemon(options, files)

    def cut() -> None:
        files.cut(Path(target))
        os._exit(0)

    def fail() -> None:
        files.failing = not files.failing
        print(files.failing, flush=True)

    gevent.signal_handler(signal.SIGUSR1, cut)
    gevent.signal_handler(signal.SIGUSR2, fail)
    daemon.start()
    print(daemon.identity.tcp_port, daemon.identity.http_port, flush=True)
    daemon.stop_wanted.wait()


if __name__ == "__main__":
    main()
