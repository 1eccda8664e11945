"""The name rule, and the directories that stand for names."""

import pytest

from pyqd.primitives import names


@pytest.mark.parametrize(
    "name", [b"a", b".", b"..", b"-_.", b"A1", b"t#ephemeral", b"x" * 64, b"x" * 54 + b"#ephemeral"]
)
def test_a_name_of_the_allowed_characters_is_valid(name: bytes) -> None:
    assert names.is_valid_name(name)
    assert names.is_valid_name_str(name.decode())


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"x" * 65,
        b"x" * 55 + b"#ephemeral",
        b"#ephemeral",
        b"t#ephemeral#ephemeral",
        b"t#",
        b"t#ephemera",
        b"t#EPHEMERAL",
        b"a b",
        b"a/b",
        b"a\x00",
        b"a\n",
        b"t#ephemeral\n",
        b"\xc3\xa9",
        b"\xff",
        b"*",
    ],
)
def test_any_other_name_is_invalid(name: bytes) -> None:
    assert not names.is_valid_name(name)
    assert not names.is_valid_name_str(name.decode("utf-8", "surrogateescape"))


def test_every_byte_outside_the_alphabet_is_refused() -> None:
    alphabet = b".abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
    assert {byte for byte in range(256) if names.is_valid_name(bytes([byte]))} == set(alphabet)


def test_only_the_suffix_makes_a_name_ephemeral() -> None:
    assert names.is_ephemeral_str("t#ephemeral")
    assert not names.is_ephemeral_str("ephemeral")
    assert not names.is_ephemeral_str("t")


@pytest.mark.parametrize("name", ["t", ".", "..", "a.topic", "a.channel", "t#ephemeral", "x" * 64])
def test_a_directory_leads_back_to_its_name(name: str) -> None:
    assert names.topic_dir(name) == name + ".topic"
    assert names.topic_of_dir(names.topic_dir(name)) == name
    assert names.channel_dir(name) == name + ".channel"
    assert names.channel_of_dir(names.channel_dir(name)) == name


@pytest.mark.parametrize("entry", ["", ".", "..", "t", ".topic", "t.channel", "a b.topic", "t.topic.bad", "t.TOPIC"])
def test_a_foreign_entry_is_no_topic(entry: str) -> None:
    assert names.topic_of_dir(entry) is None


@pytest.mark.parametrize("entry", ["c", ".channel", "c.topic", "x" * 65 + ".channel"])
def test_a_foreign_entry_is_no_channel(entry: str) -> None:
    assert names.channel_of_dir(entry) is None


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a\x00", "#ephemeral"])
def test_an_invalid_name_gets_no_directory(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid topic or channel name"):
        names.topic_dir(name)
    with pytest.raises(ValueError, match="not a valid topic or channel name"):
        names.channel_dir(name)
