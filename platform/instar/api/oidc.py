"""OpenID Connect: authorization code with PKCE against one configured provider.

Nothing that comes back is believed before it is checked: the state is one that this browser began,
and serves once; the issuer is the configured one; the ID token is signed by the provider's key
under an algorithm of ours, made for this client, alive, and answers our nonce.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import secrets
import time
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

from instar.api.hosts import is_loopback
from instar.api.problems import ProblemError
from instar.settings import OidcSettings
from instar_core.errors import InfrastructureError, NotFoundError, PrerequisiteError, UserError

__all__ = ["Identity", "OidcClient", "Started", "check_next", "check_outbound"]

_log = logging.getLogger(__name__)
# Signatures only: a shared secret (HS…) or none at all proves nothing about the provider.
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA", "Ed25519")
_TIMEOUT_S: Final = 10.0
_KEPT_S: Final = 3600.0
_LEEWAY_S: Final = 60
_LONGEST: Final = 1_000_000


class Started(NamedTuple):
    """A sign-in that begins: where the browser goes, and what is remembered until it is back."""

    url: str
    state: str
    nonce: str
    verifier: str


class Identity(NamedTuple):
    """Who the provider says somebody is, checked."""

    issuer: str
    subject: str
    email: str
    name: str
    groups: tuple[str, ...]


class OidcClient:
    """This service as a client of the configured provider.

    Args:
        settings: The provider, and what it calls this service.
    """

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._metadata: dict[str, Any] = {}
        self._keys: dict[str, Any] = {}
        self._read_at = float("-inf")

    async def start(self) -> Started:
        """Begins a sign-in.

        Raises:
            NotFoundError: If no provider is configured.
            InfrastructureError: If the provider does not answer.
        """
        metadata = await self._discover()
        state, nonce, verifier = (secrets.token_urlsafe(48) for _ in range(3))
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._settings.redirect_uri,
            "scope": " ".join(self._settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
        }
        where = str(metadata["authorization_endpoint"])
        joint = "&" if urlsplit(where).query else "?"
        return Started(where + joint + urlencode(query), state, nonce, verifier)

    async def finish(self, code: str, begun: dict[str, Any], issuer: str | None) -> Identity:
        """Exchanges the code and checks what the provider says.

        Args:
            code: The code that the browser brought.
            begun: What :meth:`start` had to be remembered, as it was kept.
            issuer: The ``iss`` of the answer, where the provider sends it (RFC 9207).

        Raises:
            ProblemError: ``unauthenticated``, if anything does not fit.
            InfrastructureError: If the provider does not answer.
        """
        metadata = await self._discover()
        if issuer is not None and issuer != self._settings.issuer:
            raise _refused("the answer comes from another issuer")
        if issuer is None and metadata.get("authorization_response_iss_parameter_supported"):
            raise _refused("the answer does not say which issuer it comes from")
        tokens = await self._exchange(metadata, code, str(begun["verifier"]))
        claims = await self._verify(str(tokens.get("id_token", "")), str(begun["nonce"]))
        return self._identity(claims)

    async def _exchange(self, metadata: dict[str, Any], code: str, verifier: str) -> dict[str, Any]:
        secret = os.environ.get(self._settings.client_secret_env, "")
        body = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._settings.redirect_uri,
            "code_verifier": verifier,
        }
        methods = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        login = None
        if secret and "client_secret_basic" in methods:
            login = (self._settings.client_id, secret)
        else:
            body["client_id"] = self._settings.client_id
            if secret:
                body["client_secret"] = secret
        return await self._ask("POST", str(metadata["token_endpoint"]), body=body, login=login)

    async def _verify(self, token: str, nonce: str) -> dict[str, Any]:
        """The claims of an ID token that holds."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            decoded = None
            for again in (False, True):
                keys = await self._key_set(anew=again)
                try:
                    decoded = jwt.decode(token, keys, algorithms=list(_ALGORITHMS))
                    break
                except (JoseError, ValueError):
                    # The provider may have changed its keys since they were read.
                    if again:
                        raise
            assert decoded is not None, "decoded or raised"
            claims = dict(decoded.claims)
            registry = jwt.JWTClaimsRegistry(
                leeway=_LEEWAY_S,
                iss={"essential": True, "value": self._settings.issuer},
                sub={"essential": True},
                aud={"essential": True, "value": self._settings.client_id},
                exp={"essential": True},
                iat={"essential": True},
                nonce={"essential": True, "value": nonce},
            )
            registry.validate(claims)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise _refused(
                f"its ID token does not hold ({type(error).__name__}: {error})"
            ) from error
        audience = claims["aud"]
        party = claims.get("azp")
        several = isinstance(audience, list) and len(audience) > 1
        if (several or party is not None) and party != self._settings.client_id:
            raise _refused("its ID token was made for another client")
        return claims

    def _identity(self, claims: dict[str, Any]) -> Identity:
        email = str(claims.get("email", "")).strip()
        if claims.get("email_verified") is not True or "@" not in email:
            raise _refused("it does not vouch for the e-mail address")
        domains = [domain.lower().lstrip("@") for domain in self._settings.allowed_domains]
        if domains and email.rpartition("@")[2].lower() not in domains:
            raise _refused("the address is of a domain that may not sign in")
        groups = claims.get(self._settings.groups_claim, ())
        if isinstance(groups, str):
            groups = (groups,)
        return Identity(
            self._settings.issuer,
            str(claims["sub"]),
            email,
            str(claims.get("name", ""))[:200],
            tuple(str(group) for group in groups if isinstance(group, str)),
        )

    async def _discover(self) -> dict[str, Any]:
        if not self._settings.issuer:
            raise NotFoundError(
                "no identity provider is configured.",
                remedy="Sign in by password, or set INSTAR_AUTH__OIDC__ISSUER.",
            )
        if time.monotonic() - self._read_at < _KEPT_S:
            return self._metadata
        issuer = self._settings.issuer
        if not (self._settings.client_id and self._settings.redirect_uri):
            raise PrerequisiteError(
                "sign-in at an identity provider is half configured.",
                remedy="Set INSTAR_AUTH__OIDC__CLIENT_ID and INSTAR_AUTH__OIDC__REDIRECT_URI.",
            )
        check_outbound(self._settings.redirect_uri)
        found = await self._ask("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise InfrastructureError(
                f"the provider at {issuer!r} calls itself {str(found.get('issuer'))[:200]!r}.",
                remedy="Write INSTAR_AUTH__OIDC__ISSUER exactly as the provider does.",
            )
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            check_outbound(str(found.get(name, "")))
        self._metadata, self._keys, self._read_at = found, {}, time.monotonic()
        return found

    async def _key_set(self, *, anew: bool) -> Any:
        from joserfc.jwk import KeySet

        if anew or not self._keys:
            self._keys = await self._ask("GET", str(self._metadata["jwks_uri"]))
        public = [
            key for key in self._keys.get("keys", ()) if key.get("kty") in ("RSA", "EC", "OKP")
        ]
        return KeySet.import_key_set({"keys": public})

    async def _ask(
        self,
        method: str,
        url: str,
        *,
        body: dict[str, str] | None = None,
        login: tuple[str, str] | None = None,
    ) -> dict[str, Any]:
        """A JSON answer of the provider; redirects are not followed, addresses are checked."""
        import httpx

        check_outbound(url)
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
                answer = await client.request(
                    method, url, data=body, auth=login, headers={"Accept": "application/json"}
                )
            if method == "POST" and 400 <= answer.status_code < 500:
                raise _refused(f"it does not exchange the code (status {answer.status_code})")
            if answer.status_code != 200 or len(answer.content) > _LONGEST:
                raise ValueError(f"status {answer.status_code}, {len(answer.content)} bytes")
            found = answer.json()
            if not isinstance(found, dict):
                raise ValueError("no JSON object")
        except (httpx.HTTPError, ValueError) as error:
            raise InfrastructureError(
                f"the identity provider does not answer as it should ({type(error).__name__}: "
                f"{error}).",
                remedy="Try again; if it stays so, look at the provider and at "
                "INSTAR_AUTH__OIDC__ISSUER.",
            ) from error
        return found


def _challenge(verifier: str) -> str:
    """What proves later that the same client asks (PKCE, S256)."""
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _refused(why: str) -> ProblemError:
    """A sign-in that is not believed; the reason is for the log, too."""
    _log.warning("a sign-in at the identity provider was refused: %s", why)
    return ProblemError(
        "unauthenticated",
        f"The identity provider's answer was refused: {why}.",
        remedy="Begin again at /v1/auth/oidc/login.",
    )


def check_outbound(url: str) -> None:
    """Refuses addresses that are not encrypted, other than this machine's own.

    Raises:
        PrerequisiteError: Naming the address.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        plain = parts.scheme == "http" and is_loopback(host)
        fine = bool(host) and (parts.scheme == "https" or plain) and parts.username is None
    except ValueError:
        fine = False
    if not fine:
        raise PrerequisiteError(
            f"{url[:200]!r} is no address to sign in with.",
            remedy="It must begin with https:// (http:// only for this machine).",
        )


def check_next(path: str) -> str:
    """Where the browser goes after signing in: a path of this service and nothing else.

    Raises:
        UserError: If it could lead elsewhere.
    """
    odd = any(ord(character) <= 32 or character == "\\" for character in path)
    if not path.startswith("/") or path.startswith("//") or odd or len(path) > 2000:
        raise UserError(
            f"'next' is {path[:100]!r}, which is no path of this service.",
            remedy="Write it like '/agents/desk'.",
        )
    return path
