"""An issuer of OpenID Connect: discovery, authorization with a code, tokens that it signs, and its public key."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.support.http_target import Answer, HttpTarget, Taken


class Issuer:
    """claims: of the next login. codes: the parameters of each authorization by its code."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {"sub": "1"}
        self.codes: dict[str, dict[str, str]] = {}
        self._key = RSAKey.generate_key(2048, {"kid": "k", "use": "sig", "alg": "RS256"})
        target = HttpTarget(self._respond)
        self.url, self.stop = target.url, target.stop

    def _respond(self, taken: Taken) -> Answer:
        parts = urlsplit(taken.path)
        if parts.path == "/authorize":
            return Answer(302, {"Location": self.authorize(dict(parse_qsl(parts.query)))})
        if taken.method == "POST":
            shown = self.token(dict(parse_qsl(taken.body.decode())))
        else:
            shown = self.documents()[parts.path]
        status = 400 if "error" in shown else 200
        return Answer(status, {"Content-Type": "application/json"}, json.dumps(shown).encode())

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


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    try:
        yield issuer
    finally:
        issuer.stop()
