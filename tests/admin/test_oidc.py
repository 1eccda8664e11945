"""Logins by OpenID Connect, from the button to the session, at an issuer that signs its tokens."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pyqd.admin.access.roles import UserRole
from pyqd.admin.access.users import add_user
from tests.admin.conftest import Admin, Answer, World
from tests.admin.test_access import Browser
from tests.support.issuer import Issuer, running_issuer
from tests.support.server import wait_until

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with running_issuer() as found:
        yield found


@pytest.fixture(scope="module")
def admin(
    world: World, start_admin: Callable[..., Admin], issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
) -> Admin:
    """A web admin with an issuer, and with a user of its own who is an administrator."""
    users = tmp_path_factory.mktemp("oidc") / "users"
    add_user(users, "ada", "correct horse", UserRole.ADMIN, ("*",))
    return start_admin(
        "pyqadmin",
        f"--lookupd-http-address={world.lookupd}",
        f"--users-file={users}",
        f"--oidc-issuer={issuer.url}",
        "--oidc-client-id=pyqadmin",
        "--oidc-role=orders-team=operate:orders*",
    )


def answer_of_issuer(url: str) -> str:
    """Return the address to which an issuer sends the browser back."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    connection.request("GET", f"{parts.path}?{parts.query}")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 302
    return str(answer.headers["Location"])


def log_in(browser: Browser, issuer: Issuer, **claims: object) -> Answer:
    """Go to the issuer and come back. Returns: the answer of the web admin then."""
    issuer.claims = {"sub": "1", **claims}
    answer = browser.get("/login/oidc")
    assert answer.status == 302, answer
    assert answer.headers["location"].startswith(f"{issuer.url}/authorize?")
    back = urlsplit(answer_of_issuer(answer.headers["location"]))
    assert (back.netloc, back.path) == (f"127.0.0.1:{browser.admin.port}", "/login/oidc/callback")
    return browser.get(f"{back.path}?{back.query}")


def check_refused(browser: Browser, answer: Answer, said: str) -> None:
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    browser.get("/login")
    assert said in browser.page
    assert browser.get("/").status == 303


def test_the_groups_of_a_login_give_a_role(admin: Admin, issuer: Issuer, world: World, topic: str) -> None:
    world.publish(f"orders_{topic}", {0: 0})
    world.publish(f"secret_{topic}", {0: 0})
    browser = Browser(admin)
    browser.get("/login?next=/nodes")
    answer = log_in(browser, issuer, preferred_username="eva", groups=["orders-team"])
    assert (answer.status, answer.headers["location"]) == (303, "/nodes")
    wait_until(lambda: "GET /login/oidc/callback (" in admin.log.read_text(), "the line of the request")
    assert "code=" not in admin.log.read_text()
    browser.get(f"/topics/orders_{topic}")
    assert ("eva" in browser.page, "/do/pause" in browser.page, "/do/delete" in browser.page) == (True, True, False)
    assert browser.get(f"/topics/secret_{topic}").status == 403
    wait_until(lambda: "login of eva by OpenID Connect from 127.0.0.1" in admin.log.read_text(), "the audit line")


def test_a_name_of_the_users_file_gives_no_rights_of_its_user(admin: Admin, issuer: Issuer) -> None:
    browser = Browser(admin)
    log_in(browser, issuer, preferred_username="ada", groups=["orders-team"])
    assert browser.get("/").status == 200
    browser.get("/lookup")
    assert "/do/create" not in browser.page


def test_a_login_without_a_role_is_refused(admin: Admin, issuer: Issuer) -> None:
    browser = Browser(admin)
    check_refused(browser, log_in(browser, issuer, groups=["guests", {"odd": 1}]), "You have no role here")


def test_a_code_of_another_browser_is_refused(admin: Admin, issuer: Issuer) -> None:
    begun, other = Browser(admin), Browser(admin)
    begun.get("/login/oidc")
    back = urlsplit(answer_of_issuer(begun.get("/login/oidc").headers["location"]))
    check_refused(other, other.get(f"{back.path}?{back.query}"), "The login has failed.")


@pytest.mark.parametrize(
    "wrong", [{"aud": "other"}, {"exp": 1}, {"nonce": "other"}, {"iss": "http://other"}, {"exp": "soon"}], ids=str
)
def test_a_token_with_wrong_claims_is_a_failed_login(admin: Admin, issuer: Issuer, wrong: dict[str, object]) -> None:
    browser = Browser(admin)
    check_refused(browser, log_in(browser, issuer, groups=["orders-team"], **wrong), "The login has failed.")


@pytest.mark.parametrize("id_token", ["no token", 5, "e30.e30.e30"])
def test_an_answer_without_a_signed_token_is_a_failed_login(
    admin: Admin, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, id_token: object
) -> None:
    monkeypatch.setattr(issuer, "token", lambda _given: {"access_token": "a", "token_type": "B", "id_token": id_token})
    browser = Browser(admin)
    check_refused(browser, log_in(browser, issuer), "The login has failed.")


def test_an_address_behind_a_proxy_with_https_is_told_to_the_issuer(admin: Admin, issuer: Issuer) -> None:
    headers = {"Host": "admin.example.org", "X-Forwarded-Proto": "https"}
    location = admin.ask("GET", "/login/oidc", headers=headers).headers["location"]
    assert "redirect_uri=https%3A%2F%2Fadmin.example.org%2Flogin%2Foidc%2Fcallback" in location


def test_an_issuer_that_does_not_answer_is_named(
    world: World, start_admin: Callable[..., Admin], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    with running_issuer() as gone:
        url = gone.url
    admin = start_admin(
        "pyqadmin",
        f"--lookupd-http-address={world.lookupd}",
        f"--oidc-issuer={url}",
        "--oidc-client-id=pyqadmin",
        f"--oidc-client-secret-file={secret}",
        "--oidc-role=staff=view",
    )
    browser = Browser(admin)
    check_refused(browser, browser.get("/login/oidc"), "The login service does not answer.")
    assert f"cannot ask the issuer {url}" in admin.log.read_text()
