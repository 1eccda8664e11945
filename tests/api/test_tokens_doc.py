"""docs/security.md: the sample file of tokens admits no client, and its commands make a valid one."""

import re
import stat
import subprocess
from pathlib import Path

import pytest

from pyqd.api.rights import ANONYMOUS, CONSUME, DIGEST, PUBLISH, TokenFileError, digest_of, read_tokens
from tests.support.server import REPOSITORY

SECTION = (REPOSITORY / "docs" / "security.md").read_text().partition("### A file of tokens")[2].partition("\n### ")[0]


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("line", [line for line in block("text").splitlines() if line[0] != "#"])
def test_an_unchanged_line_of_the_sample_admits_no_login(line: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(line + "\n")
    if line.split()[0] == ANONYMOUS:
        grants, anonymous = read_tokens(str(path))
        assert (grants, anonymous and anonymous.rights) == ((), frozenset({"status"}))
    else:
        with pytest.raises(TokenFileError):
            read_tokens(str(path))


def test_no_page_has_the_digest_of_a_token() -> None:
    for page in (REPOSITORY / "docs").rglob("*.md"):
        assert re.findall(DIGEST + r"[0-9a-fA-F]{8,}", page.read_text()) == [], page.name


def test_the_commands_make_a_file_that_serves(tmp_path: Path) -> None:
    script = "".join(line.removeprefix("$ ") + "\n" for line in block("console").splitlines())
    script += 'printf "%s %s" "$ORDERS_TOKEN" "$WORKER_TOKEN"\n'
    done = subprocess.run(
        ["bash", "-euo", "pipefail"], input=script, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True
    )
    orders_token, worker_token = done.stdout.split()
    path = tmp_path / "tokens"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (orders, worker), anonymous = read_tokens(str(path))
    assert (orders.digest, worker.digest) == (digest_of(orders_token), digest_of(worker_token))
    assert orders.allows(PUBLISH, ("orders_new",), "")
    assert not orders.allows(PUBLISH, ("invoices",), "")
    assert worker.allows(CONSUME, ("invoices",), "archive")
    assert anonymous is not None
    assert worker_token not in path.read_text()
