"""Hosts and origins that a server accepts."""

import socket
from pathlib import Path

import pytest

from pyqd.primitives.sites import Sites, names_of_machine, parse_host, parse_origin


@pytest.mark.parametrize(
    "host",
    [
        "",
        "127.0.0.1:4151",
        "127.1",
        "[::1]:4151",
        "[2001:db8::7]",
        "10.0.0.7",
        "localhost",
        "LocalHost.:4151",
        "nsqd",
        "pyqd-0.pyqd.jobs.svc",
        "pyqd-0.pyqd.jobs.svc.cluster.local:4151",
        "queue.prod.internal",
        "queue.home.arpa",
        f"{socket.gethostname()}:4151",
        "broker.example.com:4151",
        "QUEUE.example.org",
        "a.b.example.net",
    ],
)
def test_addresses_names_of_private_networks_and_own_names_are_accepted(host: str) -> None:
    sites = Sites("broker.example.com", [parse_host("queue.example.org"), parse_host("*.example.net")])
    assert sites.accepts(host)
    assert sites.host_problem(host) == ""


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:4151",
        "broker.example.com.evil.example",
        "127.0.0.1.evil.example",
        "example.net",
        "a.2.0.192.in-addr.arpa",
    ],
)
def test_names_that_a_public_site_can_have_are_refused_with_the_remedy(host: str) -> None:
    problem = Sites("broker.example.com", [parse_host("*.example.net")]).host_problem(host)
    name = host.partition(":")[0]
    assert problem == f"{name} is no name of this server; --http-allow-host={name} accepts it"


def test_all_hosts_can_be_accepted() -> None:
    assert Sites("", [parse_host("*")]).accepts("evil.example")


def test_names_of_the_machine_are_in_the_domains_that_the_resolver_searches(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    path.write_text("# search no.example\nnameserver 10.0.0.1\n\nsearch a.example b.example\n")
    host = socket.gethostname()
    assert names_of_machine(str(path)) == [host, f"{host}.a.example", f"{host}.b.example"]
    assert names_of_machine(str(tmp_path / "none")) == [host]


@pytest.mark.parametrize(
    ("site", "origin", "is_accepted"),
    [
        (None, None, True),
        ("same-origin", None, True),
        ("none", None, True),
        # A proxy in front may have changed the host; browsers let no page set the other header.
        ("same-origin", "https://public.example", True),
        (None, "http://BROKER:4151", True),
        (None, "https://broker:4151", True),
        ("cross-site", None, False),
        ("same-site", None, False),
        ("anything", None, False),
        ("same-origin, cross-site", None, False),
        ("cross-site", "http://broker:4151", False),
        (None, "http://broker", False),
        (None, "http://broker:4152", False),
        (None, "http://evil.example", False),
        (None, "null", False),
        (None, "", False),
    ],
)
def test_browsers_mark_requests_of_other_sites(site: str | None, origin: str | None, is_accepted: bool) -> None:
    assert (Sites("").origin_problem(site, origin, "broker:4151") == "") is is_accepted


def test_a_request_of_another_site_is_refused_with_the_remedy() -> None:
    sites = Sites("")
    assert sites.origin_problem("cross-site", "http://evil.example:8080", "b") == (
        "a page of http://evil.example:8080 sent this request; --http-allow-origin=http://evil.example:8080 accepts it"
    )
    assert sites.origin_problem("cross-site", "null", "b") == (
        "a page of another site sent this request; --http-allow-origin=* accepts it"
    )


def test_origins_can_be_accepted_one_by_one_or_all() -> None:
    one = Sites("", origins=[parse_origin("https://Tool.example.org")])
    assert one.origin_problem("cross-site", "https://tool.example.org", "b") == ""
    assert one.origin_problem("cross-site", "https://tool.example.org:8443", "b")
    assert one.origin_problem("cross-site", None, "b")
    every = Sites("", origins=[parse_origin("*")])
    assert every.origin_problem("cross-site", None, "b") == every.origin_problem(None, "null", "b") == ""


@pytest.mark.parametrize("text", ["", "http://a.example", "a.example:4151", "a example", "*a.example", "a.*"])
def test_a_host_is_a_name_alone(text: str) -> None:
    with pytest.raises(ValueError, match="must be a host name"):
        parse_host(text)


@pytest.mark.parametrize(
    "text", ["", "a.example", "https://a.example/", "ftp://a.example", "https://*.example", "null"]
)
def test_an_origin_has_a_scheme_and_no_path(text: str) -> None:
    with pytest.raises(ValueError, match="must be an origin"):
        parse_origin(text)
