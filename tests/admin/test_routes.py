"""Every route of the web admin: whoever adds one, it demands a login, a role, a role for its topic, and a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from werkzeug.routing import Rule

from pyqd.admin.access.roles import UserRole
from pyqd.admin.access.routes import API, OPEN, ROLES
from pyqd.admin.access.users import add_user
from pyqd.admin.app import new_app
from pyqd.admin.options import AdminOptions
from pyqd.admin.site import Site
from tests.admin.test_access import basic
from tests.support.server import free_port

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

TOKEN = "t" * 32
CHANGING = ("POST", "PUT", "DELETE")
PLACES = {
    "topic": "secret",
    "channel": "c",
    "node": "127.0.0.1:1",
    "option": "log_level",
    "action": "pause",
    "message_id": "0" * 16,
    "filename": "admin.css",
}
# Their topic is a field of the form.
FIELDS = {"topic": "secret", "channel": "c", "confirmed": "yes", "node": "127.0.0.1:1"}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    """The application with all of its routes, in front of a broker that does not answer."""
    directory = tmp_path_factory.mktemp("routes")
    users = directory / "users"
    for name, role, topics in (
        ("vera", UserRole.VIEW, "*"),
        ("otto", UserRole.ADMIN, "orders*"),
        ("ada", UserRole.ADMIN, "*"),
    ):
        add_user(users, name, "long enough", role, (topics,))
    site = Site(options(users, directory))
    yield new_app(site)
    site.close()


def options(users: Path, directory: Path) -> AdminOptions:
    return AdminOptions(
        nsqd_http_address=(f"127.0.0.1:{free_port()}",),
        users_file=str(users),
        trace_database=f"sqlite:///{directory}/trace.db",
        graphite_url="http://127.0.0.1:1",
        proxy_graphite=True,
        oidc_issuer="http://127.0.0.1:1",
        oidc_client_id="pyqadmin",
        oidc_role=("a=view",),
    )


def targets(app: Flask, *methods: str) -> list[tuple[Rule, str, str]]:
    """Return rule, method and path of each route with one of these methods that needs a login."""
    adapter = app.url_map.bind("localhost")
    return [
        (rule, method, adapter.build(rule.endpoint, {name: PLACES[name] for name in rule.arguments}, method=method))
        for rule in app.url_map.iter_rules()
        for method in methods
        if method in (rule.methods or ()) and rule.endpoint not in OPEN
    ]


def status(app: Flask, method: str, path: str, user: str, token: str = TOKEN) -> int:
    """Return the status of a request by a user, with a form. token: that of the form; the session's is TOKEN."""
    client = app.test_client()
    with client.session_transaction() as session:
        session["csrf"] = TOKEN
    headers = basic(user, "long enough") if user else {}
    data = {**FIELDS, "csrf": token} if method == "POST" else None
    return client.open(path, method=method, headers=headers, data=data).status_code


def test_each_route_needs_a_login(app: Flask) -> None:
    found = targets(app, "GET", *CHANGING)
    assert len(found) > 40
    for rule, method, path in found:
        assert status(app, method, path, "") in (303, 401), (rule, method)


def test_each_change_has_a_role_of_its_own(app: Flask) -> None:
    assert {(method, rule.rule) for rule, method, _path in targets(app, *CHANGING)} == set(ROLES)


@pytest.mark.parametrize("base_path", ["/", "/nsq/admin"])
@pytest.mark.parametrize("name", ["users", "proxy", "proxy without a name", "issuer"])
def test_each_change_needs_a_role_in_every_mode_of_access(tmp_path: Path, name: str, base_path: str) -> None:
    given: dict[str, Any] = {"admin_user": ("ada",)}
    if name == "users":
        add_user(tmp_path / "users", "vera", "long enough", UserRole.VIEW, ("*",))
        given = {"users_file": str(tmp_path / "users")}
    elif name == "issuer":
        given = {"oidc_issuer": "http://127.0.0.1:1", "oidc_client_id": "pyqadmin", "oidc_role": ("a=view",)}
    site = Site(AdminOptions(lookupd_http_address=("127.0.0.1:1",), base_path=base_path, **given))
    app = new_app(site)
    headers = {"users": basic("vera", "long enough"), "proxy": {"X-Forwarded-User": "vera"}}.get(name, {})
    for rule, method, path in targets(app, *CHANGING):
        client = app.test_client()
        with client.session_transaction() as session:
            session["csrf"] = TOKEN
            if name == "issuer":
                session.update(user="vera", until=2**40, grant=[int(UserRole.VIEW), ["*"]])
        data = {**FIELDS, "csrf": TOKEN} if method == "POST" else b'["127.0.0.1:2"]'
        answer = client.open(path, method=method, headers=headers, data=data)
        assert answer.status_code == 403, (rule, method)
    assert site.cluster.lookupds == ("127.0.0.1:1",)
    site.close()


def test_each_change_needs_more_than_the_role_of_a_viewer(app: Flask) -> None:
    found = targets(app, *CHANGING)
    assert len(found) > 12
    for rule, method, path in found:
        assert status(app, method, path, "vera") == 403, (rule, method)


def test_each_change_needs_a_role_for_its_topic(app: Flask) -> None:
    for rule, method, path in targets(app, *CHANGING):
        # The API's are in a body of JSON, which this is not.
        expected = (400,) if rule.endpoint.startswith(API) and "topic" not in rule.arguments else (403,)
        if rule.rule == "/config/<option>":
            expected = (403,)
        assert status(app, method, path, "otto") in expected, (rule, method)


def test_each_form_needs_the_token_of_its_session(app: Flask) -> None:
    found = [each for each in targets(app, *CHANGING) if not each[0].endpoint.startswith(API)]
    assert len(found) > 7
    for rule, method, path in found:
        for token in ("", "x" * 32):
            assert status(app, method, path, "ada", token) == 403, (rule, method)
        assert status(app, method, path, "ada") != 403, (rule, method)


def test_each_page_of_a_topic_needs_a_role_for_it(app: Flask) -> None:
    found = [each for each in targets(app, "GET") if "topic" in each[0].arguments]
    assert len(found) > 8
    for rule, method, path in found:
        assert status(app, method, path, "otto") == 403, (rule, method)
        assert status(app, method, path, "vera") != 403 or rule.endpoint in NEEDING_MORE, (rule, method)


# Pages with a form that a viewer may not send.
NEEDING_MORE = ("browser.seek", "browser.publish")


def test_what_knows_all_topics_needs_a_role_for_all(app: Flask) -> None:
    for path in ("/render?target=x", "/api/graphite?metric=rate&target=x", "/config/graphite_url"):
        assert status(app, "GET", path, "otto") == 403, path
        assert status(app, "GET", path, "ada") != 403, path


def test_passwords_in_urls_of_options_are_hidden(app: Flask) -> None:
    site = Site(AdminOptions(nsqd_http_address=("127.0.0.1:1",), graphite_url="http://me:secret@graphite:80/x"))
    answer = new_app(site).test_client().get("/config/graphite_url")
    assert answer.text == "http://me:***@graphite:80/x"
    site.close()


def test_an_unknown_path_is_a_page_for_browsers_only(app: Flask) -> None:
    client = app.test_client()
    headers = basic("ada", "long enough")
    page = client.get("/nothing", headers={**headers, "Accept": "text/html,*/*;q=0.8"})
    assert (page.status_code, "<h1>Not found</h1>" in page.text) == (404, True)
    answer = client.get("/nothing", headers=headers)
    assert (answer.status_code, answer.json) == (404, {"message": "NOT_FOUND"})
