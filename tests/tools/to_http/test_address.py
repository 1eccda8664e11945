"""URLs of requests, and messages in them."""

from __future__ import annotations

import pytest

from pyqd.primitives.http_client import HttpAddress
from pyqd.tools.to_http.address import Address, AddressError, Template


@pytest.mark.parametrize(
    ("url", "origin", "host", "target"),
    [
        ("http://h", HttpAddress("h", 80, False), "h", "/"),
        ("https://h/a/b?c=d", HttpAddress("h", 443, True), "h", "/a/b?c=d"),
        ("http://H:8080/", HttpAddress("h", 8080, False), "h:8080", "/"),
        ("http://[::1]:80/x", HttpAddress("::1", 80, False), "[::1]:80", "/x"),
        ("http://h/a b/é?q=ü&r=%20#part", HttpAddress("h", 80, False), "h", "/a%20b/%C3%A9?q=%C3%BC&r=%20"),
        ("http://h?x", HttpAddress("h", 80, False), "h", "/?x"),
        ("http://müller.example/", HttpAddress("xn--mller-kva.example", 80, False), "xn--mller-kva.example", "/"),
    ],
)
def test_a_url_is_taken_apart(url, origin, host, target):
    address = Address.of(url)
    assert (address.origin, address.host, address.target, address.credentials) == (origin, host, target, "")


def test_user_and_password_become_credentials():
    assert Address.of("http://al%40x:se:cret@h/").credentials == "Basic YWxAeDpzZTpjcmV0"


@pytest.mark.parametrize(
    "url", ["h:80/x", "ftp://h/", "http:///x", "http://h:port/", "http://h:99999/", "", "http://[::1/"]
)
def test_other_urls_are_errors(url):
    with pytest.raises(AddressError):
        Address.of(url)


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/b?c", "http://h:1/b?c"),
        ("b", "http://h:1/a/b"),
        ("https://other/x", "https://other/x"),
        ("//o/p", "http://o/p"),
    ],
)
def test_a_redirect_leads_to_a_url(location, url):
    assert Address.of("http://h:1/a/start").joined(location) == Address.of(url)


@pytest.mark.parametrize(
    ("template", "target"),
    [
        ("http://h/%s", "/a+b%2F%26%3D%25%C3%BC%00"),
        ("http://h/p?m=%s&x=%20y", "/p?m=a+b%2F%26%3D%25%C3%BC%00&x=%20y"),
        ("http://h/p?m=%s&x=%%20y", "/p?m=a+b%2F%26%3D%25%C3%BC%00&x=%20y"),
    ],
)
def test_a_message_is_escaped_in_the_url(template, target):
    assert Template(template).filled("a b/&=%ü\0".encode()).target == target


@pytest.mark.parametrize("template", ["http://h/", "http://h/%s/%s", "http://h/%%s", "ftp://h/%s"])
def test_a_template_without_exactly_one_place_is_refused(template):
    with pytest.raises(AddressError):
        Template(template)
