"""The context file, and which addresses and tokens count."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from pyqd.client.errors import SettingError
from pyqd.tools.ctl.contexts import DEFAULT_ADDRESS, Context, ContextFile, CtlTarget, find_target
from tests.support.server import Daemon
from tests.tools.ctl.conftest import Ctl, address_of

TOKEN = "a-token-of-the-tests-0001"


@pytest.fixture
def file(tmp_path: Path) -> ContextFile:
    return ContextFile(tmp_path / "pyqd" / "contexts.toml")


def test_a_stored_context_is_read_again(file: ContextFile) -> None:
    made = Context(lookupd_http_addresses=("l1:4161", "l2:4161"), token='ü"\\\x7f\n', ca="/ca.pem")
    file.add("prod", made)
    assert file.read() == ("prod", {"prod": made})


def test_only_the_owner_can_read_the_file(file: ContextFile) -> None:
    file.add("prod", Context(nsqd_http_addresses=("a:1",), token=TOKEN))
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert not file.readable_by_others()


def test_a_file_that_others_can_read_is_reported(bare: Ctl, broker: Daemon) -> None:
    assert bare("context", "add", "here", "-a", address_of(broker)).code == 0
    path = bare.home / ".config" / "pyqd" / "contexts.toml"
    path.chmod(0o640)
    assert f"chmod 600 {path}" in bare("topics").err


def test_comments_of_the_user_are_kept(file: ContextFile) -> None:
    file.add("a", Context(nsqd_http_addresses=("a:1",)))
    file.path.write_text("# mine\n" + file.path.read_text())
    file.add("b", Context(nsqd_http_addresses=("b:1",)))
    assert file.path.read_text().startswith("# mine\n")
    assert list(file.read()[1]) == ["a", "b"]


def test_a_link_to_the_file_stays(file: ContextFile, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("")
    file.path.parent.mkdir()
    file.path.symlink_to(real)
    file.add("a", Context(nsqd_http_addresses=("a:1",)))
    assert file.path.is_symlink()
    assert "a:1" in real.read_text()


def test_of_changes_at_the_same_time_none_is_lost(file: ContextFile) -> None:
    names = [f"c{number}" for number in range(12)]
    threads = [threading.Thread(target=file.add, args=(name, Context(nsqd_http_addresses=("a:1",)))) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(file.read()[1]) == sorted(names)
    assert list(file.path.parent.iterdir()) == [file.path]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x =", "cannot read"),
        ("current = 1", "must be a string"),
        ("contexts = 1", "must be a string"),
        ("[contexts]\na = 1", "must be a table"),
        ("[contexts.a]\nadress = 'x'", "unknown key 'adress'"),
        ("[contexts.a]\ntoken = 1", "token must be a string"),
        ("[contexts.a]\nnsqd_http_addresses = [1]", "must be a list of strings"),
    ],
)
def test_a_damaged_file_is_reported_and_not_overwritten(file: ContextFile, text: str, reason: str) -> None:
    file.path.parent.mkdir()
    file.path.write_text(text)
    with pytest.raises(SettingError, match=reason):
        file.read()
    with pytest.raises(SettingError, match=reason):
        file.add("new", Context())
    assert file.path.read_text() == text


def test_an_unwritable_directory_is_reported() -> None:
    with pytest.raises(SettingError, match="cannot write /proc/absent/pyqd/contexts"):
        ContextFile(Path("/proc/absent/pyqd/contexts.toml")).add("a", Context())


def test_the_first_context_is_the_current_one_until_another_is_used(bare: Ctl) -> None:
    for name in ("one", "two"):
        assert bare("context", "add", name, "-a", f"{name}:4151", "--token", TOKEN).code == 0
    assert bare("context", "use", "two").code == 0
    ran = bare("context", "list")
    assert [(row["name"], row["current"]) for row in ran.json()["contexts"]] == [("one", False), ("two", True)]
    assert TOKEN not in ran.out
    assert TOKEN not in bare("context", "list", "--table").out
    assert bare("context", "remove", "two", "--yes").code == 0
    assert [row["current"] for row in bare("context", "list").json()["contexts"]] == [False]


def test_files_of_a_context_are_found_from_any_directory(bare: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bare.home)
    assert bare("context", "add", "prod", "-a", "a:1", "--token-file=token", "--ca=ca.pem").code == 0
    (row,) = bare("context", "list").json()["contexts"]
    assert (row["token_file"], row["ca"]) == (str(bare.home / "token"), str(bare.home / "ca.pem"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("use", "absent"), "no context 'absent'; contexts are: here"),
        (("remove", "absent", "-y"), "no context 'absent'"),
        (("remove", "here"), "add --yes"),
        (("add", "here", "-a", "b:1"), "add --yes"),
        (("add", "new"), "needs an address"),
        (("add", "new", "-a", "b:1", "-l", "c:1"), "not both"),
        (("add", "new", "-a", "b:port"), "no address"),
        (("add", "new", "-a", "b:1", "--key", "k"), "a key needs its certificate"),
    ],
)
def test_a_wrong_use_of_contexts_is_refused(bare: Ctl, arguments: tuple[str, ...], reason: str) -> None:
    assert bare("context", "add", "here", "-a", "a:1").code == 0
    ran = bare("context", *arguments)
    assert ran.code == 2
    assert reason in ran.err
    assert [row["nsqd_http_addresses"] for row in bare("context", "list").json()["contexts"]] == [["a:1"]]


def found(
    file: ContextFile, context: str | None = None, variables: dict[str, str] | None = None, **flags: object
) -> CtlTarget:
    return find_target(flags, context, variables or {}, file)


def test_without_any_address_the_broker_on_this_machine_is_meant(file: ContextFile) -> None:
    target = found(file)
    assert (target.settings.nsqd_http_addresses, target.is_default) == ((DEFAULT_ADDRESS,), True)


def test_flags_win_over_variables_and_these_over_the_current_context(file: ContextFile) -> None:
    file.add("prod", Context(nsqd_http_addresses=("prod:1",), token="of-prod"))
    assert found(file).settings.nsqd_http_addresses == ("prod:1",)
    variables = {"PYQD_LOOKUPD_HTTP_ADDRESS": "l1:1, l2:1", "PYQD_CA": "ca"}
    by_variable = found(file, None, variables).settings
    assert (by_variable.nsqd_http_addresses, by_variable.lookupd_http_addresses) == ((), ("l1:1", "l2:1"))
    by_flag = found(file, None, variables, nsqd_http_addresses=("f:1",)).settings
    assert (by_flag.nsqd_http_addresses, by_flag.lookupd_http_addresses, by_flag.ca) == (("f:1",), (), "ca")


def test_the_token_of_the_current_context_goes_to_no_other_address(file: ContextFile) -> None:
    file.add("prod", Context(nsqd_http_addresses=("prod:1",), token="of-prod"))
    assert found(file).token() == "of-prod"
    assert found(file, nsqd_http_addresses=("f:1",)).token() is None
    assert found(file, None, {"PYQD_HTTP_ADDRESS": "v:1"}).token() is None
    assert found(file, None, {"PYQD_HTTP_ADDRESS": "v:1", "PYQD_CONTEXT": "prod"}).token() is None


def test_a_context_that_is_named_counts_beside_addresses(file: ContextFile) -> None:
    file.add("prod", Context(lookupd_http_addresses=("prod:1",), token="of-prod"))
    target = found(file, "prod", {"PYQD_HTTP_ADDRESS": "v:1"}, nsqd_http_addresses=("f:1",))
    assert target.settings == Context(nsqd_http_addresses=("f:1",), token="of-prod")
    assert found(file, "prod", {"PYQD_HTTP_ADDRESS": "v:1"}).settings.lookupd_http_addresses == ("prod:1",)


def test_a_variable_names_the_context(file: ContextFile) -> None:
    file.add("prod", Context(nsqd_http_addresses=("prod:1",)))
    file.add("test", Context(nsqd_http_addresses=("test:1",)))
    assert found(file, None, {"PYQD_CONTEXT": "test"}).settings.nsqd_http_addresses == ("test:1",)
    with pytest.raises(SettingError, match="no context 'absent'; contexts are: prod, test"):
        found(file, None, {"PYQD_CONTEXT": "absent"})


def test_a_token_may_be_in_a_file(file: ContextFile, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    file.add("prod", Context(nsqd_http_addresses=("prod:1",), token_file=str(path)))
    assert found(file).token() == TOKEN
    assert found(file, "prod", token="given").token() == "given"
    assert (
        found(
            file, None, {"PYQD_TOKEN": "of the environment", "PYQD_HTTP_ADDRESS": "v:1"}, token_file=str(path)
        ).token()
        == TOKEN
    )
    path.write_text("\n")
    with pytest.raises(SettingError, match="has no token"):
        found(file).token()
    with pytest.raises(SettingError, match="cannot read the token"):
        found(file, token_file=str(tmp_path / "absent")).token()


def test_the_directory_is_that_of_the_xdg_specification(tmp_path: Path) -> None:
    assert ContextFile.of({"HOME": "/h"}).path == Path("/h/.config/pyqd/contexts.toml")
    assert ContextFile.of({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}).path == Path("/x/pyqd/contexts.toml")
    assert ContextFile.of({"HOME": "/h", "XDG_CONFIG_HOME": "x"}).path == Path("/h/.config/pyqd/contexts.toml")
