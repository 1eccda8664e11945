"""Logins, roles by topic, sessions, and what protects browsers."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from pyqd.admin.access.limiter import OF_ADDRESS, OF_USER, WAIT_MAX_S, LoginLimiter
from pyqd.admin.access.oidc import user_of_claims
from pyqd.admin.access.roles import EVERYBODY, User, UserRole
from pyqd.admin.access.routes import local_path
from pyqd.admin.access.users import add_user, entries_of, remove_user
from pyqd.admin.app import behind_proxy
from pyqd.admin.options import AdminOptions
from tests.admin.conftest import PASSWORDS, Admin, Answer, World
from tests.support.http_stub import http_stub, json_answer
from tests.support.preloaded import completed
from tests.support.server import free_port, wait_until

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Browser:
    """Keeps cookies, and sends forms with the token of the last page."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self.cookie = ""
        self.page = ""

    def take(self, answer: Answer) -> Answer:
        found = re.match(r"[^;]+", answer.headers.get("set-cookie", ""))
        self.cookie = found[0] if found else self.cookie
        self.page = answer.body.decode(errors="replace")
        return answer

    def get(self, path: str) -> Answer:
        return self.take(self.admin.ask("GET", path, headers={"Cookie": self.cookie}))

    def post(self, path: str, token: str | None = None, **fields: str) -> Answer:
        if token is None:
            found = re.search(r'name="csrf" value="([^"]+)"', self.page)
            token = found[1] if found else ""
        body = urlencode({"csrf": token, **fields}).encode()
        return self.take(self.admin.ask("POST", path, body, {**FORM, "Cookie": self.cookie}))

    def ids(self) -> list[str]:
        """Return the ids of messages that the last page lets the reader choose."""
        return re.findall(r'name="id" value="([0-9a-f]{16})"', self.page)

    def ids_of_pages(self, path: str) -> list[str]:
        """Return those of a page and of all that follow it."""
        self.get(path)
        found = self.ids()
        following = re.search(r'rel="next" href="([^"]+)"', self.page)
        return found + self.ids_of_pages(following[1].replace("&amp;", "&")) if following else found

    def log_in(self, name: str) -> Answer:
        self.get("/login")
        answer = self.post("/login", name=name, password=PASSWORDS[name])
        assert answer.status == 303, answer
        self.get("/")
        return answer


@pytest.fixture
def browser(closed: Admin) -> Browser:
    return Browser(closed)


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


class TestLogin:
    @pytest.mark.slow
    def test_a_page_leads_to_the_login_and_back(self, browser: Browser) -> None:
        answer = browser.get("/nodes?sort=-version")
        assert (answer.status, answer.headers["location"]) == (303, "/login?next=/nodes?sort%3D-version")
        browser.get(answer.headers["location"])
        answer = browser.post("/login", name="ada", password=PASSWORDS["ada"])
        assert (answer.status, answer.headers["location"]) == (303, "/nodes?sort=-version")
        assert browser.get("/nodes").status == 200

    @pytest.mark.slow
    def test_a_wrong_password_and_an_unknown_user_look_alike(self, browser: Browser) -> None:
        browser.get("/login")
        wrong = browser.post("/login", name="vera", password="x" * 12)
        unknown = browser.post("/login", name="nobody", password="x" * 12)
        assert (wrong.status, unknown.status) == (401, 401)
        assert b"Name or password is wrong." in wrong.body
        assert b"Name or password is wrong." in unknown.body

    @pytest.mark.slow
    def test_logging_out_ends_copies_of_the_cookie_too_even_after_a_restart(
        self, world: World, start_admin: Callable[..., Admin], users_file: Path, tmp_path: Path
    ) -> None:
        key = tmp_path / "key"
        key.write_text("k" * 32)
        flags = (f"--lookupd-http-address={world.lookupd}", f"--users-file={users_file}", f"--session-key-file={key}")
        admin = start_admin("pyqadmin", *flags)
        browser, other = Browser(admin), Browser(admin)
        browser.log_in("ada")
        other.log_in("ada")
        cookie = browser.cookie
        assert browser.post("/logout").status == 303
        for each in (admin, start_admin("pyqadmin", *flags)):
            assert each.ask("GET", "/", headers={"Cookie": cookie}).status == 303
            assert each.ask("GET", "/", headers={"Cookie": other.cookie}).status == 200
        assert (tmp_path / "key.ended").stat().st_mode & 0o777 == 0o600

    @pytest.mark.slow
    def test_a_changed_password_ends_sessions(
        self, world: World, start_admin: Callable[..., Admin], tmp_path: Path
    ) -> None:
        path = tmp_path / "users.toml"
        add_user(path, "ada", PASSWORDS["ada"], UserRole.ADMIN, ("*",))
        admin = start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}", f"--users-file={path}")
        browser = Browser(admin)
        browser.log_in("ada")
        add_user(path, "ada", "another one", UserRole.ADMIN, ("*",))
        assert browser.get("/").status == 303

    def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(self, browser: Browser) -> None:
        browser.get("/login")
        cookie = browser.post("/login", name="ada", password=PASSWORDS["ada"]).headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Lax"} <= set(cookie.split("; "))

    @pytest.mark.slow
    def test_scripts_send_basic_authentication(self, closed: Admin) -> None:
        refused = closed.ask("GET", "/api/topics")
        assert (refused.status, refused.message) == (401, "UNAUTHORIZED")
        assert refused.headers["www-authenticate"].startswith("Basic ")
        assert closed.ask("GET", "/api/topics", headers=basic("vera", PASSWORDS["vera"])).status == 200
        assert closed.ask("GET", "/api/topics", headers=basic("vera", "wrong")).status == 401

    @pytest.mark.slow
    def test_a_right_password_is_not_refused_because_of_wrong_ones(
        self, world: World, start_admin: Callable[..., Admin], users_file: Path
    ) -> None:
        admin = start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}", f"--users-file={users_file}")
        guessing, browser = Browser(admin), Browser(admin)
        guessing.get("/login")
        for _ in range(int(OF_USER.failures_max) + 1):
            assert guessing.post("/login", name="ada", password="wrong").status == 401
        assert browser.log_in("ada").status == 303

    @pytest.mark.slow
    def test_attempts_beyond_those_that_wait_are_refused(
        self, world: World, start_admin: Callable[..., Admin], users_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A check takes long on a busy machine.
        monkeypatch.setattr("tests.admin.conftest.WAIT_S", 60.0)
        flags = (f"--lookupd-http-address={world.lookupd}", f"--users-file={users_file}", "--trusted-proxy=127.0.0.1")
        admin = start_admin("pyqadmin", *flags)

        def guess(_number: int) -> int:
            return admin.ask("GET", "/api/topics", headers=basic("ada", "wrong")).status

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(guess, range(16))) == {401, 429}
            rest = [pool.submit(guess, number) for number in range(5)]
            other = {**basic("ada", PASSWORDS["ada"]), "X-Forwarded-For": "10.0.0.1"}
            assert admin.ask("GET", "/api/topics", headers=other).status == 200
            assert all(each.result() in (401, 429) for each in rest)

    def test_credentials_that_are_no_base64_are_refused(self, closed: Admin) -> None:
        for value in ("\u00e9", "a", "\u00ff="):
            answer = closed.ask("GET", "/api/topics", headers={"Authorization": f"Basic {value}"})
            assert answer.status == 401, value


class TestRoles:
    @pytest.mark.slow
    def test_a_viewer_sees_and_changes_nothing(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 0}, channel="c")
        browser.log_in("vera")
        assert browser.get(f"/topics/{topic}/c").status == 200
        assert "/do/pause" not in browser.page
        assert browser.post("/do/pause", topic=topic, channel="c").status == 403
        assert not (world.brokers[0].channel(topic, "c") or {})["paused"]

    @pytest.mark.slow
    def test_an_operator_pauses_but_does_not_delete(self, browser: Browser, world: World, topic: str) -> None:
        name = f"orders_{topic}"
        world.publish(name, {0: 0}, channel="c")
        browser.log_in("otto")
        browser.get(f"/topics/{name}/c")
        assert "/do/delete" not in browser.page
        assert browser.post("/do/pause", topic=name, channel="c").status == 200
        assert not (world.brokers[0].channel(name, "c") or {})["paused"]
        assert browser.post("/do/pause", topic=name, channel="c", confirmed="yes").status == 303
        assert (world.brokers[0].channel(name, "c") or {})["paused"]
        assert browser.post("/do/delete", topic=name, confirmed="yes").status == 403
        assert world.brokers[0].topic(name) is not None

    @pytest.mark.slow
    def test_other_topics_do_not_exist_for_a_user_of_some(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(f"secret_{topic}", {0: 0})
        world.publish(f"orders_{topic}", {0: 0})
        headers = basic("otto", PASSWORDS["otto"])
        topics = browser.admin.ask("GET", "/api/topics", headers=headers).json["topics"]
        assert f"orders_{topic}" in topics
        assert all(name.startswith("orders") for name in topics)
        assert browser.admin.ask("GET", f"/api/topics/secret_{topic}", headers=headers).status == 403
        browser.log_in("otto")
        for path in ("/", "/topics", "/connections", "/lookup", "/health", f"/nodes/{world.addresses()[0]}"):
            assert browser.get(path).status == 200
            assert "secret_" not in browser.page, path

    def test_an_administrator_deletes_after_a_confirmation(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 1}, channel="c")
        browser.log_in("ada")
        answer = browser.post("/do/delete", topic=topic)
        assert (answer.status, b"cannot be undone" in answer.body) == (200, True)
        assert world.brokers[0].topic(topic) is not None
        assert browser.post("/do/delete", topic=topic, confirmed="yes").status == 303
        assert world.brokers[0].topic(topic) is None

    def test_options_are_seen_and_changed_by_administrators_only(self, closed: Admin) -> None:
        vera, ada = (basic(name, PASSWORDS[name]) for name in ("vera", "ada"))
        assert closed.ask("GET", "/config/log_level", headers=vera).status == 403
        assert closed.ask("PUT", "/config/log_level", b"info", vera).status == 403
        assert closed.ask("PUT", "/config/log_level", b"info", ada).status == 200
        wait_until(lambda: "set option log_level to info by ada" in closed.log.read_text(), "the audit line")

    @pytest.mark.slow
    def test_dead_letters_go_to_topics_of_the_administrator_only(
        self, world: World, topic: str, start_admin: Callable[..., Admin], tmp_path: Path
    ) -> None:
        world.publish(f"orders_{topic}", {0: 0}, channel="c")
        path = tmp_path / "users"
        add_user(path, "anna", "long enough", UserRole.ADMIN, ("orders*",))
        admin = start_admin("pyqadmin", f"--lookupd-http-address={world.lookupd}", f"--users-file={path}")
        PASSWORDS["anna"] = "long enough"
        browser = Browser(admin)
        browser.log_in("anna")
        page = f"/topics/orders_{topic}/c/limits"
        browser.get(page)
        assert browser.post(page, dead_letter_topic="secret", confirmed="yes").status == 403
        browser.get(page)
        assert browser.post(page, dead_letter_topic="orders_dead", confirmed="yes").status == 303
        # A tombstone sends the token for the brokers; only brokers may get it.
        headers = basic("anna", "long enough")
        elsewhere = f"127.0.0.1:{free_port()}"
        body = json.dumps({"topic": f"orders_{topic}"}).encode()
        answer = admin.ask("DELETE", f"/api/nodes/{elsewhere}", body, headers)
        assert (answer.status, answer.message) == (404, "NODE_NOT_FOUND")

    def test_what_is_summed_over_all_topics_needs_a_role_for_all(self, browser: Browser) -> None:
        browser.log_in("otto")
        browser.get("/counter")
        assert ('class="counter"' in browser.page, "<figure" in browser.page) == (True, False)
        browser.log_in("vera")
        browser.get("/counter")
        assert "<figure" in browser.page


class TestReasons:
    @pytest.mark.slow
    def test_files_of_other_topics_are_not_named(self, start_admin: Callable[..., Admin], users_file: Path) -> None:
        durability = {"health": "NOK - cannot write secret.log", "damage": {"count": 0, "records_lost": 0}}
        stats = {"topics": [{"topic_name": "orders", "channels": []}]}
        known = {"/info": {"hostname": "h"}, "/stats": stats, "/durability": durability}
        with http_stub(lambda path, _query: json_answer(known[path])) as broker:
            flags = (f"--nsqd-http-address={broker.address}", f"--users-file={users_file}")
            admin = start_admin("pyqadmin", *flags)

            def page(path: str, name: str) -> str:
                return admin.ask("GET", path, headers=basic(name, PASSWORDS[name])).body.decode()

            for path in ("/health", "/durability"):
                wait_until(lambda path=path: "secret.log" in page(path, "vera"), path)  # type: ignore[misc]
                assert ("NOK" in page(path, "otto"), "secret" in page(path, "otto")) == (True, False)


class TestAuditLog:
    @pytest.mark.slow
    def test_no_log_level_hides_who_did_what(
        self, world: World, start_admin: Callable[..., Admin], users_file: Path, topic: str
    ) -> None:
        world.publish(topic, {0: 0}, channel="c")
        flags = (f"--lookupd-http-address={world.lookupd}", f"--users-file={users_file}", "--log-level=fatal")
        browser = Browser(start_admin("pyqadmin", *flags))
        browser.get("/login")
        browser.post("/login", name="ada", password="wrong")
        browser.log_in("ada")
        browser.post("/do/pause", topic=topic, channel="c", confirmed="yes")
        browser.get("/")
        browser.post("/logout")
        lines = [line.partition(": ")[2].partition(" from ")[0] for line in browser.admin.log.read_text().splitlines()]
        place = f"topic={topic} channel=c"
        assert lines == ["login of 'ada'", "login of ada", f"pause_channel {place} by ada", "logout of ada"]

    @pytest.mark.slow
    def test_an_action_that_fails_everywhere_is_told_as_failed(
        self, world: World, start_admin: Callable[..., Admin]
    ) -> None:
        browser = Browser(start_admin("pyqadmin", f"--nsqd-http-address=127.0.0.1:{free_port()}"))
        browser.get("/health")
        for action in ("pause", "delete"):
            assert browser.post(f"/do/{action}", topic="t", confirmed="yes").status == 303
            browser.get("/health")
        text = browser.admin.log.read_text()
        assert [
            line for line in ("pause_topic", "delete_topic") if f"{line} topic=t failed by anonymous" not in text
        ] == []


@pytest.fixture(scope="module", params=["pyqadmin", "nsqadmin"])
def fronted(request: pytest.FixtureRequest, world: World, start_admin: Callable[..., Admin]) -> Admin:
    """A web admin that takes the user's name from a header."""
    flags = (f"--lookupd-http-address={world.lookupd}", "--admin-user=ada", "--acl-http-header=X-Who")
    return start_admin(request.param, *flags)


class TestHeaderOfAProxy:
    def test_only_listed_users_change_things(self, fronted: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 0})
        path, body = f"/api/topics/{topic}", b'{"action":"pause"}'
        for headers in ({}, {"X-Who": "otto"}, {"X-Who": "ada "}, {"X-Forwarded-User": "ada"}):
            answer = fronted.ask("POST", path, body, headers)
            expected = 403 if headers.get("X-Who", "").strip() != "ada" else 200
            assert answer.status == expected, headers
        assert fronted.ask("POST", path, b"", {"X-Who": "otto"}).message == "FORBIDDEN"
        assert fronted.ask("GET", path).status == 200


class TestBrowsersAreProtected:
    def test_a_form_without_the_token_is_refused(self, browser: Browser, world: World, topic: str) -> None:
        world.publish(topic, {0: 0})
        browser.log_in("ada")
        for token in ("", "x" * 32, "é"):
            answer = browser.post("/do/pause", token, topic=topic)
            assert (answer.status, "load the page again" in browser.page) == (403, True)
            assert "<header>" in browser.page
        assert not (world.brokers[0].topic(topic) or {})["paused"]

    def test_requests_of_other_sites_are_refused(self, open_admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 0})
        body = b'{"action":"pause"}'
        for site in ("cross-site", "same-site"):
            answer = open_admin.ask("POST", f"/api/topics/{topic}", body, {"Sec-Fetch-Site": site})
            assert (answer.status, answer.message.partition(":")[0]) == (403, "CROSS_SITE_REQUEST")
        assert not (world.brokers[0].topic(topic) or {})["paused"]
        assert open_admin.ask("POST", f"/api/topics/{topic}", body, {"Sec-Fetch-Site": "same-origin"}).status == 200

    def test_over_plain_http_the_origin_tells_other_sites(self, open_admin: Admin, world: World, topic: str) -> None:
        world.publish(topic, {0: 0})
        path, body = f"/api/topics/{topic}", b'{"action":"pause"}'
        for origin in ("http://evil.example", "null", "http://[evil", f"http://127.0.0.1:{open_admin.port + 1}"):
            answer = open_admin.ask("POST", path, body, {"Origin": origin})
            assert (answer.status, answer.message.partition(":")[0]) == (403, "CROSS_SITE_REQUEST")
        assert not (world.brokers[0].topic(topic) or {})["paused"]
        own = {"Origin": f"http://127.0.0.1:{open_admin.port}"}
        assert open_admin.ask("POST", path, body, own).status == 200

    @pytest.mark.slow
    def test_a_page_whose_name_was_resolved_to_this_address_reads_nothing(
        self, world: World, start_admin: Callable[..., Admin]
    ) -> None:
        flags = (f"--lookupd-http-address={world.lookupd}", "--http-allow-host=admin.example.org")
        admin = start_admin("pyqadmin", *flags)
        for target in ("/", "/api/topics", "/config/nsqlookupd_http_addresses"):
            answer = admin.ask("GET", target, None, {"Host": "evil.example", "Sec-Fetch-Site": "same-origin"})
            assert (answer.status, answer.message.partition(":")[0]) == (403, "UNKNOWN_HOST")
            assert admin.ask("GET", target, None, {"Host": "admin.example.org"}).status == 200
            assert admin.ask("GET", target, None, {"Host": "localhost"}).status == 200
        assert admin.ask("GET", "/ping", None, {"Host": "evil.example"}).status == 200

    def test_other_sites_may_link_to_a_page_and_not_embed_it(self, open_admin: Admin) -> None:
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert open_admin.ask("GET", "/", None, link).status == 200
        for changed in ({"Sec-Fetch-Mode": "no-cors"}, {"Sec-Fetch-Dest": "iframe"}):
            assert open_admin.ask("GET", "/", None, {**link, **changed}).status == 403
        assert open_admin.ask("POST", "/api/topics", b"{}", link).status == 403

    def test_preferences_of_a_page_that_was_posted_lead_home(self, browser: Browser) -> None:
        browser.log_in("ada")
        browser.post("/do/pause", topic="t")
        found = re.search(r'name="back" value="([^"]*)"', browser.page)
        assert (found and found[1]) == ""
        assert browser.post("/preferences", theme="dark", back="").headers["location"] == "/"

    def test_cookies_that_have_come_over_https_stay_there(self, closed: Admin) -> None:
        for headers in ({"X-Forwarded-Proto": "https"}, {"X-Scheme": "https"}):
            cookie = closed.ask("GET", "/login", headers=headers).headers["set-cookie"]
            assert "Secure" in cookie.split("; ")
        assert "Secure" not in closed.ask("GET", "/login").headers["set-cookie"].split("; ")

    def test_pages_allow_no_foreign_content(self, closed: Admin) -> None:
        headers = closed.ask("GET", "/login").headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
        assert headers["cache-control"] == "no-store"

    def test_a_login_leads_to_pages_of_this_site_only(self) -> None:
        for target in ("//elsewhere", "https://elsewhere", "/\\elsewhere", "javascript:x", "/a\nb", ""):
            assert local_path(target) == "", target
        assert local_path("/topics/a?q=b") == "/topics/a?q=b"


class TestUsersFile:
    @pytest.mark.slow
    def test_users_are_added_listed_and_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "users"

        def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "pyqd.apps.admin", "user", *words, f"--users-file={path}"]
            return completed(command, content=stdin)

        assert run("add", "ada", "--role=operate", "--topic=a*", "--topic=b", stdin="long enough\n").returncode == 0
        assert run("list").stdout == "ada\toperate\ta* b\n"
        assert path.stat().st_mode & 0o777 == 0o600
        assert "long enough" not in path.read_text()
        assert run("remove", "ada").returncode == 0
        gone = run("remove", "ada")
        assert (gone.returncode, gone.stderr) == (1, f"pyqadmin user remove: there is no user ada in {path}\n")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("a = 1", "a is no table"),
            ("[a]", "user a has no password made by"),
            ('[a]\npassword = "plain"', "user a has no password made by"),
            ('[a]\npassword = "$argon2"\nrole = "god"', "unknown role 'god'"),
            ('[a]\npassword = "$argon2"\ntopics = "x"', "topics of user a are no list"),
            ('[a]\npassword = "$argon2"\nroles = "x"', "unknown key roles"),
            ("[a", "Expected"),
        ],
    )
    def test_mistakes_in_the_users_file_are_named(self, text: str, said: str) -> None:
        with pytest.raises(ValueError, match=re.escape(said)):
            entries_of(text)

    @pytest.mark.parametrize(("name", "password"), [("", "long enough"), (" a", "long enough"), ("a", "short")])
    def test_bad_names_and_short_passwords_are_refused(self, tmp_path: Path, name: str, password: str) -> None:
        path = tmp_path / "users"
        with pytest.raises(ValueError, match=r"no name of a user|at least 8 characters"):
            add_user(path, name, password, UserRole.VIEW, ("*",))
        assert not path.exists()

    @pytest.mark.slow
    def test_names_with_any_letters_are_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "users"
        names = ['ä"b c.d', "\U0001f600"]
        for name in names:
            add_user(path, name, "long enough", UserRole.VIEW, ("*",))
        assert list(entries_of(path.read_text("utf-8"))) == names
        for name in names:
            remove_user(path, name)
        assert entries_of(path.read_text("utf-8")) == {}

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
    def test_a_changed_file_keeps_its_owner(self, tmp_path: Path) -> None:
        path = tmp_path / "users"
        path.write_text("")
        os.chown(path, 1234, 2345)
        add_user(path, "ada", "long enough", UserRole.VIEW, ("*",))
        found = path.stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 2345, 0o600)


class TestParts:
    def test_a_role_holds_for_its_topics(self) -> None:
        user = User("u", UserRole.OPERATE, ("orders*", "mail"))
        topics = ("orders", "orders.eu", "mail", "mail2")
        assert [topic for topic in topics if user.may(UserRole.OPERATE, topic)] == ["orders", "orders.eu", "mail"]
        assert not user.may(UserRole.ADMIN, "mail")
        assert [role for role in UserRole if user.may(role)] == [UserRole.VIEW]
        assert EVERYBODY.may(UserRole.ADMIN)

    def test_failures_of_a_user_at_an_address_make_no_other_one_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = [0.0]
        monkeypatch.setattr("pyqd.admin.access.limiter.time.monotonic", lambda: clock[0])
        limiter = LoginLimiter()
        for _ in range(9):
            limiter.failed("ada", "a")
        assert [limiter.wait_s("ada", "a") for _ in range(3)] == [0, 1, 2]
        assert [limiter.wait_s(*each) for each in (("ada", "b"), ("otto", "a"))] == [0, 0]
        for _ in range(9):
            limiter.wait_s("ada", "a")
        assert [limiter.wait_s("ada", "a") > WAIT_MAX_S for _ in range(3)] == [True] * 3
        # Refused attempts take no turns.
        clock[0] = 1.0
        assert limiter.wait_s("ada", "a") <= WAIT_MAX_S
        limiter.succeeded("ada", "a")
        assert limiter.wait_s("ada", "a") == 0

    def test_one_wrong_password_each_second_and_a_half_delays_the_right_one_by_a_second_at_most(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = [0.0]
        monkeypatch.setattr("pyqd.admin.access.limiter.time.monotonic", lambda: clock[0])
        limiter = LoginLimiter()
        for _ in range(200):
            assert limiter.wait_s("ada", "a") <= 1.0
            limiter.failed("ada", "a")
            clock[0] += 1.5
        assert limiter.wait_s("ada", "a") <= 1.0

    def test_failures_with_many_names_make_their_address_take_turns(self) -> None:
        limiter = LoginLimiter()
        for number in range(int(OF_ADDRESS.failures_max)):
            limiter.failed(f"name {number}", "a")
        assert limiter.wait_s("x", "a") == 0
        assert limiter.wait_s("y", "a") > 0
        assert limiter.wait_s("y", "b") == 0

    @pytest.mark.parametrize(
        ("peer", "forwarded", "client"),
        [
            ("127.0.0.1", "10.0.0.1", "10.0.0.1"),
            ("127.0.0.1", "made up, 10.0.0.1", "10.0.0.1"),
            ("127.0.0.1", "1.1.1.1, 10.0.0.1, 192.168.0.9", "10.0.0.1"),
            ("::ffff:127.0.0.1", "10.0.0.1", "10.0.0.1"),
            ("127.0.0.1", "made up", "127.0.0.1"),
            ("127.0.0.1", "", "127.0.0.1"),
            ("10.9.9.9", "10.0.0.1", "10.9.9.9"),
        ],
    )
    def test_the_client_is_the_address_before_the_trusted_proxies(self, peer: str, forwarded: str, client: str) -> None:
        seen: dict[str, Any] = {}
        options = AdminOptions(trusted_proxy=("127.0.0.1/32", "192.168.0.0/16"))

        def inner(environ: Any, _start: Any) -> list[bytes]:
            seen.update(environ)
            return []

        application = behind_proxy(inner, options)
        headers = {"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": forwarded, "HTTP_X_FORWARDED_USER": "ada"}
        application(headers, lambda *_: lambda _data: None)
        assert seen["REMOTE_ADDR"] == client
        assert ("HTTP_X_FORWARDED_USER" in seen) is (peer != "10.9.9.9")

    def test_claims_give_the_highest_role_for_its_topics(self) -> None:
        rules = ("staff=view", "ops=operate:a*", "oncall=operate:b*", "boss=admin")
        options = AdminOptions(oidc_role=rules)
        claims = {"sub": "1", "email": "u@example.org", "groups": ["staff", "ops", "oncall"]}
        assert user_of_claims(options, claims) == User("u@example.org", UserRole.OPERATE, ("a*", "b*"))
        assert user_of_claims(options, {"sub": "1", "groups": ["guests"]}) is None
        # No rule can name the value of a claim that is missing.
        for roles in (rules, ("None=admin",)):
            for missing in ({}, {"groups": None}):
                assert user_of_claims(AdminOptions(oidc_role=roles), {"sub": "1", **missing}) is None


@pytest.fixture(autouse=True)
def no_crash(closed: Admin) -> Iterator[None]:
    yield
    assert "Traceback" not in closed.log.read_text()
