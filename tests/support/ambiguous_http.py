"""HTTP requests with two possible readings: of the end of their body, or of their login or host.

A proxy in front of the daemon may take the other reading: a client then smuggles a request past the proxy.
"""

from __future__ import annotations

AMBIGUOUS = {
    "coding identity, then chunked": b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "coding chunked, then identity": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "coding gzip, then chunked": b"Transfer-Encoding: gzip\r\ntransfer-encoding: chunked",
    "coding chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "coding empty, then chunked": b"Transfer-Encoding:\r\nTransfer-Encoding: chunked",
    "coding chunked, then empty": b"Transfer-Encoding: chunked\r\nTransfer-Encoding:",
    "coding identity alone": b"Transfer-Encoding: identity",
    "coding identity with a length": b"Transfer-Encoding: identity\r\nContent-Length: 13",
    "list of codings": b"Transfer-Encoding: gzip, chunked",
    "list with identity": b"Transfer-Encoding: identity, chunked",
    "list that begins empty": b"Transfer-Encoding: ,chunked",
    "coding with a parameter": b"Transfer-Encoding: chunked;q=1",
    "coding in quotes": b'Transfer-Encoding: "chunked"',
    "coding behind a vertical tab": b"Transfer-Encoding: \x0bchunked",
    "coding that only begins so": b"Transfer-Encoding: chunkedx",
    "coding on a folded line": b"Transfer-Encoding:\r\n chunked",
    "coding with a space before the colon": b"Transfer-Encoding : chunked",
    "length and coding": b"Content-Length: 13\r\nTransfer-Encoding: chunked",
    "coding and length": b"Transfer-Encoding: chunked\r\nContent-Length: 13",
    "length 0 and coding": b"Content-Length: 0\r\nTransfer-Encoding: chunked",
    "two lengths": b"Content-Length: 13\r\nContent-Length: 3",
    "the same length twice": b"Content-Length: 13\r\nContent-Length: 13",
    "no length, then a length": b"Content-Length:\r\nContent-Length: 13",
    "list of lengths": b"Content-Length: 13, 13",
    "length with a sign": b"Content-Length: +13",
    "negative length": b"Content-Length: -13",
    "length in hex": b"Content-Length: 0x0d",
    "length beyond 64 bits": b"Content-Length: 18446744073709551629",
    "length on a folded line": b"Content-Length: 1\r\n 3",
    "length with a space before the colon": b"Content-Length : 13",
    "length with a NUL": b"Content-Length: 13\x00",
    "folded line": b"X-Any: a\r\n b\r\nContent-Length: 13",
    "line end without CR": b"X-Any: a\nContent-Length: 13",
    "CR alone in a value": b"X-Any: a\rContent-Length: 3\r\nContent-Length: 13",
    "header without a name": b": a\r\nContent-Length: 13",
    "line without a colon": b"nonsense\r\nContent-Length: 13",
    "two hosts": b"Host: y\r\nContent-Length: 13",
    "the same host twice": b"Host: x\r\nContent-Length: 13",
    "two logins": b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\nContent-Length: 13",
}
CHUNKED_BODY = b"3\r\nabc\r\n0\r\n\r\n"
AMBIGUOUS_CHUNKS = {
    "size in hex notation": b"0x3\r\nabc\r\n0\r\n\r\n",
    "size with a sign": b"+3\r\nabc\r\n0\r\n\r\n",
    "space before the size": b" 3\r\nabc\r\n0\r\n\r\n",
    "space behind the size": b"3 \r\nabc\r\n0\r\n\r\n",
    "size beyond 64 bits": b"10000000000000003\r\nabc\r\n0\r\n\r\n",
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "size line without CR": b"3\nabc\r\n0\r\n\r\n",
    "size line without LF": b"3\rabc\r\n0\r\n\r\n",
    "extension without CR": b"3;a\nabc\r\n0\r\n\r\n",
    "chunk longer than its size": b"3\r\nabcd\r\n0\r\n\r\n",
    "chunk end without CR": b"3\r\nabc\n0\r\n\r\n",
    "last line without CR": b"3\r\nabc\r\n0\r\n\n",
    "length among the trailers": b"3\r\nabc\r\n0\r\nContent-Length: 3\r\n\r\n",
}
