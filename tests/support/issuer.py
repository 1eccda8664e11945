"""An issuer of OpenID Connect: discovery, authorization with a code, tokens that it signs, and its public key."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey


class Issuer:
    """claims: of the next login. codes: the parameters of each authorization by its code."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {"sub": "1"}
        self.codes: dict[str, dict[str, str]] = {}
        self._key = RSAKey.generate_key(2048, {"kid": "k", "use": "sig", "alg": "RS256"})
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if parts.path == "/authorize":
                    self.send_response(302)
                    self.send_header("Location", issuer.authorize(dict(parse_qsl(parts.query))))
                    self.end_headers()
                    return
                self.answer(issuer.documents()[parts.path])

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self.answer(issuer.token(dict(parse_qsl(body))))

            def answer(self, shown: dict[str, Any]) -> None:
                body = json.dumps(shown).encode()
                self.send_response(400 if "error" in shown else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def documents(self) -> dict[str, dict[str, Any]]:
        """Return what can be read, by path."""
        discovery = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "id_token_signing_alg_values_supported": ["RS256"],
        }
        return {
            "/.well-known/openid-configuration": discovery,
            "/keys": {"keys": [self._key.as_dict(private=False)]},
        }

    def authorize(self, asked: dict[str, str]) -> str:
        """Return the address to which the browser goes back, with a code. asked: parameters of the request."""
        code = f"code{len(self.codes)}"
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, given: dict[str, str]) -> dict[str, Any]:
        """Return the tokens for a code; an error if the request does not belong to its authorization."""
        asked = self.codes.pop(given.get("code", ""), None)
        verifier = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).rstrip(b"=").decode()
        if asked is None or challenge != asked["code_challenge"] or given["redirect_uri"] != asked["redirect_uri"]:
            return {"error": "invalid_grant"}
        now_s = int(time.time())
        claims = {"iss": self.url, "aud": asked["client_id"], "iat": now_s, "exp": now_s + 60, "nonce": asked["nonce"]}
        signed = jwt.encode({"alg": "RS256", "kid": "k"}, {**claims, **self.claims}, self._key)
        return {"access_token": "a", "token_type": "Bearer", "expires_in": 60, "id_token": signed}

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    """Run an issuer for a block."""
    issuer = Issuer()
    try:
        yield issuer
    finally:
        issuer.stop()
