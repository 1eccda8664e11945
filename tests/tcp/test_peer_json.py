"""Text of JSON of other programs: no half of a surrogate pair survives."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyqd.config.live_options import addresses_of
from pyqd.lookupd.channel_query import channels_in
from pyqd.lookupd.peer_connection import info_of
from pyqd.lookupd.protocol import parse_peer
from pyqd.primitives.peer_json import json_text
from pyqd.tcp.negotiate import decode_identity
from pyqd.tcp.permissions import decode_permissions

# JSON strings as a peer may send them.
LONE = [rb'"a\ud800"', rb'"\uDFFFa"', rb'"\ud800\ud800a"', rb'"a\udc00\ud800"', b'"a\xed\xa0\x80"', b'"a\xff"']


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\uD83D\uDE00\ude00"', "\U0001f600\ufffd"),
        (rb'"\ud800"', "\ufffd"),
        (rb'"\ud800\u0041"', "\ufffdA"),
        (rb'"\ud800\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\\ud800"', r"\ud800"),
        (rb'"\\\ud800"', "\\\ufffd"),
        (rb'"\\\\ud800"', r"\\ud800"),
        (rb'"\"\ud800"', '"\ufffd'),
        (b'"\xc3\xa9\xff"', "é\ufffd"),
    ],
)
def test_what_is_no_character_becomes_the_replacement_character(sent: bytes, text: str) -> None:
    assert json.loads(json_text(sent)) == text


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_text_differs_only_in_halves_of_pairs(text: str) -> None:
    found = json.loads(json_text(json.dumps(text).encode()))
    assert found == json.loads(json.dumps(text)).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@pytest.mark.parametrize("sent", LONE)
def test_all_json_of_peers_of_the_daemons_is_text(sent: bytes) -> None:
    identity = decode_identity(b'{"client_id":%b,"hostname":%b,"user_agent":%b}' % (sent, sent, sent))
    peer = parse_peer(
        b'{"broadcast_address":%b,"hostname":%b,"version":%b,"tcp_port":1,"http_port":2}' % (sent, sent, sent), "r"
    )
    granted = decode_permissions(b'{"ttl":1,"identity":%b,"identity_url":%b}' % (sent, sent))
    info = info_of(b'{"broadcast_address":%b,"http_port":1,"version":%b}' % (sent, sent))
    texts = [
        *(identity.client_id, identity.hostname, identity.user_agent),
        *(peer.broadcast_address, peer.hostname, peer.version),
        *(granted.identity, granted.identity_url, info.broadcast_address, info.version),
        *channels_in(b'{"channels":[%b]}' % sent),
        *(addresses_of(b"[%b]" % sent) or ()),
    ]
    for text in texts:
        assert "\ufffd" in text
        text.encode()
