"""Go's %q. The expected forms were printed by Go's strconv.Quote."""

import pytest

from pyqd.primitives.goquote import go_quote, go_quote_str

VECTORS = [
    (b"", b'""'),
    (b"abc", b'"abc"'),
    (b"a b", b'"a b"'),
    (b'"\\', b'"\\"\\\\"'),
    (b"\x07\x08\x0c\n\r\t\x0b", b'"\\a\\b\\f\\n\\r\\t\\v"'),
    (b"\x00\x01\x1f\x7f", b'"\\x00\\x01\\x1f\\x7f"'),
    (b"\x80\xff", b'"\\x80\\xff"'),
    (b"\xc3\xa9", b'"\xc3\xa9"'),
    (b"\xe2\x82", b'"\\xe2\\x82"'),
    (b"\xe2(\xa1", b'"\\xe2(\\xa1"'),
    (b"\xed\xa0\x80", b'"\\xed\\xa0\\x80"'),
    (b"\xf0\x90\x80A", b'"\\xf0\\x90\\x80A"'),
    (b"\xf4\x90\x80\x80", b'"\\xf4\\x90\\x80\\x80"'),
    (b"\xc0\x80", b'"\\xc0\\x80"'),
    (b"\xef\xbf\xbd", b'"\xef\xbf\xbd"'),
    (b"\xc2\xa0", b'"\\u00a0"'),
    (b"\xc2\xad", b'"\\u00ad"'),
    (b"\xe2\x80\xa8", b'"\\u2028"'),
    (b"\xe2\x80\x8b", b'"\\u200b"'),
    (b"\xe3\x80\x80", b'"\\u3000"'),
    (b"\xef\xbb\xbf", b'"\\ufeff"'),
    (b"\xf0\x9f\x98\x80", b'"\xf0\x9f\x98\x80"'),
    (b"\xf3\xa0\x80\x81", b'"\\U000e0001"'),
    (b"\xf4\x8f\xbf\xbf", b'"\\U0010ffff"'),
    (b"\xee\x80\x80", b'"\\ue000"'),
    (b"'", b'"\'"'),
    (b"\x1b[31m", b'"\\x1b[31m"'),
    (b"\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e", b'"\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e"'),
    (b"\xcc\x81", b'"\xcc\x81"'),
    (b"\xf0\x9f\x98\x80\xf0\x9f\x98", b'"\xf0\x9f\x98\x80\\xf0\\x9f\\x98"'),
    (b'\x18"\x15', b'"\\x18\\"\\x15"'),
    (b"\xaa\xee\x06\xa2", b'"\\xaa\\xee\\x06\\xa2"'),
    (b"\nyn\xbc", b'"\\nyn\\xbc"'),
    (b"D\xc8_", b'"D\\xc8_"'),
    (b"b\t8\\f", b'"b\\t8\\\\f"'),
    (b"\x01\xdd\x9c\x84(", b'"\\x01\xdd\x9c\\x84("'),
    (b"\x18<?", b'"\\x18<?"'),
    (b"\xae/", b'"\\xae/"'),
    (b"/F\x91", b'"/F\\x91"'),
    (b"\xfa\xe2", b'"\\xfa\\xe2"'),
    (b"\x8d\xbb\x8f", b'"\\x8d\\xbb\\x8f"'),
    (b"`", b'"`"'),
    (b"&\xf0V\x0c\xc5$", b'"&\\xf0V\\f\\xc5$"'),
    (b'"', b'"\\""'),
    (b"U", b'"U"'),
    (b"N,\xa7\xd6", b'"N,\\xa7\\xd6"'),
    (b"\xb0\xea\xe1\xa7r<", b'"\\xb0\\xea\\xe1\\xa7r<"'),
    (b"\x05\xacx\x8f", b'"\\x05\\xacx\\x8f"'),
    (b"O\xde\xe8;\x136", b'"O\\xde\\xe8;\\x136"'),
    (b">E", b'">E"'),
    (b"\xf9", b'"\\xf9"'),
    (b"\r#\xb9H\x84\xd8", b'"\\r#\\xb9H\\x84\\xd8"'),
    (b"Da", b'"Da"'),
    (b"\x90\xd5\x05l\x85\xa2", b'"\\x90\\xd5\\x05l\\x85\\xa2"'),
    (b"\xcf\xac\xd2@D", b'"\xcf\xac\\xd2@D"'),
    (b"\xcd\xccs\x97\xcd", b'"\\xcd\\xccs\\x97\\xcd"'),
    (b"\x00", b'"\\x00"'),
    (b"F\xe8\xd0C\x9d", b'"F\\xe8\\xd0C\\x9d"'),
    (b"\xf2!", b'"\\xf2!"'),
    (b"\xc8\x19d!\xcc\xaf", b'"\\xc8\\x19d!\xcc\xaf"'),
    (b"6\xfe", b'"6\\xfe"'),
    (b"\x98mM\n\xcc\xe8", b'"\\x98mM\\n\\xcc\\xe8"'),
    (b"\x1a\xa5\xef\xa2", b'"\\x1a\\xa5\\xef\\xa2"'),
    (b"\xf1\x81X", b'"\\xf1\\x81X"'),
    (b"\xdc", b'"\\xdc"'),
    (b"z \xeb", b'"z \\xeb"'),
    (b"\xfb@\x19\xb8\xe2\x9e", b'"\\xfb@\\x19\\xb8\\xe2\\x9e"'),
    (b"em\xfd", b'"em\\xfd"'),
    (b"\x1a\x0ei", b'"\\x1a\\x0ei"'),
    (b"\xfc\xe0", b'"\\xfc\\xe0"'),
]

# Drawn at random from the characters Unicode has had since 3.2, so that no interpreter's tables are too old for them.
PRINTABLE = """
    631 d2f 10a7 147a 1e29 2022 33ab 3d0f 3dc8 3f66 40cb 4535 4d00 5040 5877 5a5c 5aac 5b68 5dd7 5eb8 6030 6049 61d1
    6567 6870 69bb 6be3 713e 78ce 7a60 7fa3 8417 8605 8861 8a83 8a8c 8d1d 92af 9986 a065 a264 a402 b781 bb21 c5d1
    cd7b d6f6 f976 fd58 ffbb 1d042 1d7fe 203a5 207b7 20b07 20e91 212c8 214e4 215fc 21729 21838 21968 221ba 22348
    226a7 22c84 23632 236a3 23b7a 23c61 241ba 24205 2471d 2480a 24a28 24b6c 24c7f 24f15 25df4 25f87 26b6e 26b95
    27630 279f8 27e8c 27fed 28c86 2924b 299f8 2a51a
"""
NOT_PRINTABLE = """
    80 81 82 83 84 85 87 88 89 8a 8c 8d 8e 8f 90 91 92 93 94 96 97 98 9a 9b 9c 9e 9f a0 ad 70f 1680 180e 2000 2001
    2002 2003 2004 2005 2006 2007 2008 200b 200c 200e 200f 2028 2029 202b 202c 202d 202e 2060 206a 206b 206c 206e
    206f 3000 feff fff9
"""


@pytest.mark.parametrize(("data", "quoted"), VECTORS)
def test_bytes_are_quoted_as_go_quotes_them(data: bytes, quoted: bytes) -> None:
    assert go_quote(data) == quoted


@pytest.mark.parametrize("code", [int(word, 16) for word in PRINTABLE.split()])
def test_a_printable_character_is_kept(code: int) -> None:
    char = chr(code)
    assert go_quote(char.encode()) == f'"{char}"'.encode()


@pytest.mark.parametrize("code", [int(word, 16) for word in NOT_PRINTABLE.split()])
def test_a_character_that_does_not_print_becomes_an_escape(code: int) -> None:
    assert go_quote(chr(code).encode()) == f'"\\u{code:04x}"'.encode()


def test_text_is_quoted_like_its_bytes() -> None:
    assert go_quote_str("caf\u00e9\n") == '"caf\u00e9\\n"'
    assert go_quote_str(b"\xff a".decode("utf-8", "surrogateescape")) == '"\\xff a"'
