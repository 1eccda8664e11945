"""Tests of pyqd.net.listener: the files of unix sockets."""

import errno
import os
import socket
from pathlib import Path

import pytest

from pyqd.net.listener import Listener, listening_socket
from pyqd.primitives.addresses import TcpAddress, UnixAddress
from pyqd.primitives.errors import StartupError


def listening_on(path: Path) -> socket.socket:
    return listening_socket(UnixAddress(str(path)))


def takes_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "socket"


def test_a_socket_whose_daemon_was_killed_is_replaced(path: Path) -> None:
    # Closing leaves the file, as the end of a process does.
    listening_on(path).close()
    assert path.is_socket()
    with listening_on(path):
        assert takes_connections(path)
        assert list(path.parent.iterdir()) == [path]


def test_a_socket_on_which_something_listens_is_in_use(path: Path) -> None:
    with listening_on(path):
        with pytest.raises(OSError, match="in use") as caught:
            listening_on(path)
        assert caught.value.errno == errno.EADDRINUSE
        assert takes_connections(path)


def test_a_socket_that_takes_no_more_connections_is_in_use(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(OSError, match="in use"):
            listening_on(path)
        assert path.is_socket()


@pytest.mark.parametrize("kind", ["file", "directory", "link to a stale socket"])
def test_a_file_that_is_no_socket_is_never_removed(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_bytes(b"content")
    elif kind == "directory":
        path.mkdir()
    else:
        listening_on(path.parent / "other").close()
        path.symlink_to("other")
    with pytest.raises(StartupError, match="address already in use"):
        Listener(lambda connection, remote: None).start(UnixAddress(str(path)))
    assert path.is_symlink() or path.is_dir() or path.read_bytes() == b"content"
    assert kind != "link to a stale socket" or (path.parent / "other").is_socket()


def test_a_host_name_that_cannot_exist_is_an_error_that_names_it() -> None:
    with pytest.raises(OSError, match=r"^'a\.\.b' is no host name: "):
        listening_socket(TcpAddress("a..b", 0))


def test_a_listener_that_stops_leaves_the_socket_that_has_taken_its_name(path: Path) -> None:
    listener = Listener(lambda connection, remote: None)
    listener.start(UnixAddress(str(path)))
    path.unlink()
    with listening_on(path):
        listener.stop()
        assert takes_connections(path)


@pytest.mark.parametrize(("mode", "expected"), [(0o600, 0o600), (0o666, 0o666), (None, 0o755)])
def test_the_file_of_a_unix_socket_has_the_mode_of_its_flag(tmp_path: Path, mode: int | None, expected: int) -> None:
    path = tmp_path / "socket"
    before = os.umask(0o022)
    try:
        listener = listening_socket(UnixAddress(str(path), mode))
    finally:
        os.umask(before)
    with listener:
        assert path.stat().st_mode & 0o777 == expected
