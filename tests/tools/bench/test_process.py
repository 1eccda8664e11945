"""Process behind a connection of this machine."""

import os
import socket

import pytest

from pyqd.tools.bench.process import inode_between, kernel_forms, owner_of, read_cpu_time, serving_process


@pytest.mark.slow
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_process_that_serves_a_connection_is_found(family: int, host: str) -> None:
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no {host} on this machine")
    with listener, socket.create_connection(listener.getsockname()[:2]) as near:
        far, _ = listener.accept()
        with far:
            assert serving_process(near) == os.getpid()


@pytest.mark.slow
def test_a_client_of_ipv4_is_found_at_a_server_of_ipv6() -> None:
    try:
        listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):
        pytest.skip("no IPv6 on this machine")
    with listener, socket.create_connection(("127.0.0.1", listener.getsockname()[1])) as near:
        far, _ = listener.accept()
        with far:
            assert serving_process(near) == os.getpid()


@pytest.mark.slow
def test_a_connection_of_another_machine_has_no_process_here() -> None:
    assert inode_between(("192.0.2.1", 4150), ("192.0.2.2", 40_000)) is None
    assert owner_of("0") is None


def test_addresses_are_written_as_the_kernel_writes_them() -> None:
    # The form depends on the byte order of the machine; this one is the same in both.
    assert next(kernel_forms(("1.1.1.1", 4150))) == "01010101:1036"
    assert list(kernel_forms(("::", 4150))) == [f"{'0' * 32}:1036"]


def test_cpu_time_grows_with_work() -> None:
    before = read_cpu_time(os.getpid())
    while (read_cpu_time(os.getpid()) - before).total_s < 0.02:
        sum(range(10_000))
