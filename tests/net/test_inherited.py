"""Listening sockets that another process has opened."""

import socket
from pathlib import Path

from pyqd.apps.inherited import Inherited
from pyqd.net.listener import listening_socket
from pyqd.primitives.addresses import UnixAddress


def inherited(path: Path) -> tuple[socket.socket, Inherited]:
    address = UnixAddress(str(path))
    opened = listening_socket(address)
    return opened, Inherited(listeners={"tcp": opened}, flags={"tcp": str(address)})


def test_a_socket_is_taken_once(tmp_path: Path) -> None:
    opened, found = inherited(tmp_path / "sock")
    with opened:
        assert found.take("tcp", UnixAddress(str(tmp_path / "sock"))) is opened
        assert found.take("tcp", UnixAddress(str(tmp_path / "sock"))) is None


def test_a_socket_of_another_address_is_closed(tmp_path: Path) -> None:
    opened, found = inherited(tmp_path / "sock")
    assert found.take("tcp", UnixAddress(str(tmp_path / "other"))) is None
    assert opened.fileno() == -1


def test_a_unix_socket_without_its_file_is_closed(tmp_path: Path) -> None:
    opened, found = inherited(tmp_path / "sock")
    (tmp_path / "sock").unlink()
    assert found.take("tcp", UnixAddress(str(tmp_path / "sock"))) is None
    assert opened.fileno() == -1
