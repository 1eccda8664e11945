"""Links and redirects to the current page: names with `#`, base paths, and proxies that change paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pyqd.admin.access.roles import UserRole
from pyqd.admin.access.users import add_user
from pyqd.admin.app import new_app
from pyqd.admin.options import AdminOptions
from pyqd.admin.site import Site
from tests.admin.conftest import PASSWORDS, Admin, World
from tests.admin.test_access import Browser
from tests.support.http_stub import Answer, http_stub, json_answer

TOPIC = "t#ephemeral"
CHANNEL = "c#ephemeral"
PAGE = "/topics/t%23ephemeral"
ROW = {"topic_name": TOPIC, "channels": [{"channel_name": CHANNEL}]}


@pytest.fixture
def make_site() -> Iterator[Callable[..., Site]]:
    """Return a function that makes a web admin over a broker with an ephemeral topic and channel."""

    def answer(path: str, _query: dict[str, str]) -> Answer:
        return json_answer({"version": "1.3.0", "topics": [ROW]} if path == "/stats" else {"version": "1.3.0"})

    made = []
    with http_stub(answer) as broker:

        def make(base_path: str = "/", **options: Any) -> Site:
            site = Site(AdminOptions(nsqd_http_address=(broker.address,), base_path=base_path, **options))
            made.append(site)
            return site

        yield make
        for site in made:
            site.close()


@pytest.mark.parametrize("base", ["", "/nsq admin", "/a/ü b"])
def test_links_of_ephemeral_names_lead_to_their_pages(make_site: Callable[..., Site], base: str) -> None:
    client = new_app(make_site(base or "/")).test_client()
    page = client.get(base + PAGE)
    assert page.status_code == 200
    links = re.findall(r'href="([^"]*sort=[^"]*)"', page.text)
    assert len(links) > 3
    for link in links:
        assert (" " not in link, "%23" in urlsplit(link).path) == (True, True), link
        assert client.get(link.replace("&amp;", "&")).status_code == 200
    back = re.search(r'name="back" value="([^"]+)"', page.text)
    csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert back is not None
    assert csrf is not None
    for field in ({"theme": "dark"}, {"language": "zh"}):
        answer = client.post(f"{base}/preferences", data={"csrf": csrf[1], "back": back[1], **field})
        assert answer.status_code == 303
        assert client.get(answer.headers["location"]).status_code == 200


@pytest.mark.parametrize("base", ["", "/nsq admin"])
def test_a_login_that_begins_at_an_ephemeral_name_ends_there(
    make_site: Callable[..., Site], tmp_path: Path, base: str
) -> None:
    add_user(tmp_path / "users", "ada", PASSWORDS["ada"], UserRole.ADMIN, ("*",))
    site = make_site(base or "/", users_file=str(tmp_path / "users"))
    client = new_app(site).test_client()
    login = client.get(f"{base}{PAGE}?sort=depth")
    page = client.get(login.headers["location"])
    csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert csrf is not None
    fields = {"csrf": csrf[1], "name": "ada", "password": PASSWORDS["ada"]}
    answer = client.post(f"{base}/login", data=fields)
    assert urlsplit(answer.headers["location"]).query == "sort=depth"
    assert client.get(answer.headers["location"]).status_code == 200


@pytest.mark.parametrize("has_login", [False, True])
def test_a_proxy_that_strips_the_base_path_is_told_so(
    make_site: Callable[..., Site], tmp_path: Path, has_login: bool
) -> None:
    add_user(tmp_path / "users", "ada", PASSWORDS["ada"], UserRole.ADMIN, ("*",))
    client = new_app(make_site("/nsq/admin", users_file=str(tmp_path / "users") if has_login else "")).test_client()
    for path in ("/", "/login", "/topics", "/nsq/administration"):
        answer = client.get(path, headers={"Accept": "text/html"})
        assert (answer.status_code, "Paths begin with /nsq/admin here." in answer.text) == (404, True), path
    assert client.get("/nsq/admin", headers={"Accept": "text/html"}).status_code == (303 if has_login else 200)


@pytest.mark.slow
def test_ephemeral_names_in_a_browser(world: World, open_admin: Admin) -> None:
    world.publish("addresses#ephemeral", {0: 0}, channel=CHANNEL)
    browser = Browser(open_admin)
    assert browser.get("/topics/addresses%23ephemeral").status == 200
    link = re.search(r'href="([^"]*sort=[^"]*)"', browser.page)
    assert link is not None
    assert browser.get(link[1].replace("&amp;", "&")).status == 200
