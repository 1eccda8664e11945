"""Addresses: TCP addresses, paths of unix sockets, and invalid ones."""

import re

import pytest

from pyqd.primitives.addresses import TcpAddress, UnixAddress, split_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:4150", TcpAddress("0.0.0.0", 4150)),
        (":4150", TcpAddress("", 4150)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("localhost:", TcpAddress("localhost", 0)),
        (":", TcpAddress("", 0)),
        ("[::1]:4150", TcpAddress("::1", 4150)),
        ("[fe80::1%eth0]:1", TcpAddress("fe80::1%eth0", 1)),
        ("[]:80", TcpAddress("", 80)),
        ("/run/pyqd.sock", UnixAddress("/run/pyqd.sock")),
        ("pyqd.sock", UnixAddress("pyqd.sock")),
        ("./4150", UnixAddress("./4150")),
        ("foo", UnixAddress("foo")),
        ("[::1]x:80", UnixAddress("[::1]x:80")),
        ("[[::1]]:80", UnixAddress("[[::1]]:80")),
        ("[:80", UnixAddress("[:80")),
        ("a]:80", UnixAddress("a]:80")),
        ("a:b:80", UnixAddress("a:b:80")),
        ("a:[80]", UnixAddress("a:[80]")),
    ],
)
def test_an_address_with_host_and_port_is_tcp_and_any_other_a_path(
    text: str, address: TcpAddress | UnixAddress
) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", "a:65536", "a:999999", "a:no-such-service", "a:-1"])
def test_an_address_without_a_usable_port_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"missing address|invalid port|unknown port"):
        split_address(text)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("4150", "missing colon before the port; write :4150, or 127.0.0.1:4150"),
        ("127.0.0.1", "missing port in address; write for example 127.0.0.1:4150"),
        ("::1", "missing port in address; write for example [::1]:4150"),
        ("[::1]", "missing port in address; write for example [::1]:4150"),
    ],
)
def test_a_port_or_an_ip_address_alone_is_no_unix_socket(text: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"address {text}: {remedy}")):
        split_address(text)


def test_an_address_prints_as_it_is_written() -> None:
    assert str(TcpAddress("::1", 4150)) == "[::1]:4150"
    assert str(TcpAddress("127.0.0.1", 4150)) == "127.0.0.1:4150"
    assert str(UnixAddress("/run/x")) == "/run/x"
