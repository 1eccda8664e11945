"""The repository speaks of itself alone."""

import re

import pytest

from tests.meta.repository import own_files, relative

# Put together from halves, so that this file does not hold what it forbids.
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "X" + "XX")
HOSTS = ("py" + "pi.org", "python" + "hosted.org", "proxy.go" + "lang.org")
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.}])/(?:work|root|home)/"),
    "unfinished work": re.compile(rf"\b(?:{'|'.join(UNFINISHED)})\b"),
    "a download host": re.compile("|".join(map(re.escape, HOSTS))),
    "a merge left half done": re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_file_holds_forbidden_words(kind: str) -> None:
    found = []
    for path in own_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{relative(path)}:{text.count(chr(10), 0, m.start()) + 1}: {m[0]}" for m in FORBIDDEN[kind].finditer(text)
        ]
    assert found == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("a path of one machine", "see /" + "work/main"),
        ("unfinished work", f"# {UNFINISHED[0]}: later"),
        ("a download host", f"https://{HOSTS[0]}/simple"),
        ("a merge left half done", "<" * 7 + " HEAD"),
    ],
)
def test_a_forbidden_word_is_noticed(kind: str, text: str) -> None:
    assert FORBIDDEN[kind].search(text)
