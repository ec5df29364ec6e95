"""Testing sign-in: a small OpenID Connect provider that really listens, on this machine alone.

It signs with real RSA keys, checks PKCE, client and redirect address, and takes each code once.
What an attacker or a careless provider would do is done by ``tamper``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

__all__ = ["OidcProvider", "Tamper"]

Tamper = Callable[[dict[str, Any], dict[str, Any]], "str | None"]
"""Changes header and claims of an ID token, or returns another token."""


@dataclass
class OidcProvider:
    """A provider with one client, who signs everybody in as the person that ``claims`` describe.

    Use it as a context manager: it listens in between.
    """

    client_id: str = "instar"
    client_secret: str = "only for tests"
    claims: dict[str, Any] = field(default_factory=dict)
    tamper: Tamper | None = None
    discovered: dict[str, Any] = field(default_factory=dict)
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one"}))
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    _server: ThreadingHTTPServer | None = None

    @property
    def issuer(self) -> str:
        """The provider's address."""
        assert self._server is not None, "it listens inside its with block"
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> OidcProvider:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: one[0] for name, one in parse_qs(parts.query).items()}
                if parts.path == "/authorize":
                    self.send_response(302)
                    self.send_header("Location", provider.authorize(query))
                    self.end_headers()
                    return
                answers: dict[str, Callable[[], dict[str, Any]]] = {
                    "/.well-known/openid-configuration": provider.metadata,
                    "/keys": lambda: {"keys": [provider.key.as_dict(private=False)]},
                }
                answer = answers.get(parts.path)
                self._send(404 if answer is None else 200, answer() if answer else {})

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                sent = parse_qs(self.rfile.read(length).decode())
                body = {name: one[0] for name, one in sent.items()}
                self._send(*provider.exchange(body, self.headers.get("Authorization", "")))

            def _send(self, status: int, answer: dict[str, Any]) -> None:
                raw = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing: the tests read what matters."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def metadata(self) -> dict[str, Any]:
        """The discovery document."""
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            **self.discovered,
        }

    def authorize(self, query: dict[str, str]) -> str:
        """Where the browser is sent with a fresh code; the person has agreed."""
        assert query["response_type"] == "code" and query["client_id"] == self.client_id
        assert query["code_challenge_method"] == "S256" and "openid" in query["scope"].split()
        code = secrets.token_urlsafe(24)
        self.codes[code] = query
        back = {"code": code, "state": query["state"], "iss": self.issuer}
        return f"{query['redirect_uri']}?{urlencode(back)}"

    def exchange(self, body: dict[str, str], login: str) -> tuple[int, dict[str, Any]]:
        """The answer of the token endpoint."""
        basic = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        begun = self.codes.pop(body.get("code", ""), None)
        digest = hashlib.sha256(body.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if login != f"Basic {basic}":
            return 401, {"error": "invalid_client"}
        if (
            begun is None
            or begun["code_challenge"] != challenge
            or begun["redirect_uri"] != body.get("redirect_uri")
        ):
            return 400, {"error": "invalid_grant"}
        token = self.id_token(begun["nonce"])
        return 200, {"access_token": secrets.token_urlsafe(8), "token_type": "Bearer"} | {
            "id_token": token
        }

    def id_token(self, nonce: str) -> str:
        """A signed ID token about the person, tampered with where a test asks for it."""
        now = int(time.time())
        header: dict[str, Any] = {"alg": "RS256", "kid": "one"}
        claims: dict[str, Any] = {
            "iss": self.issuer,
            "aud": self.client_id,
            "sub": "248289761001",
            "nonce": nonce,
            "iat": now,
            "exp": now + 300,
            "email": "anna@example.org",
            "email_verified": True,
            "name": "Anna",
            **self.claims,
        }
        other = self.tamper(header, claims) if self.tamper is not None else None
        return other if other is not None else jwt.encode(header, claims, self.key)
