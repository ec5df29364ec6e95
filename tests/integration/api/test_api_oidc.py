"""Sign-in at an identity provider: a real one on this machine, and what attackers try."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from instar.api.app import create_app
from instar.api.oidc import check_next, check_outbound
from instar.api.testing import OidcProvider
from instar.settings import AuthSettings, OidcSettings, Settings
from instar_core.errors import PrerequisiteError, UserError

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
HOME = "http://127.0.0.1:8321"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[OidcProvider]:
    """A provider that listens."""
    with OidcProvider() as listening:
        monkeypatch.setenv("INSTAR_OIDC_CLIENT_SECRET", listening.client_secret)
        yield listening


class Site:
    """The service with the provider configured, and a browser."""

    def __init__(self, database: Any, provider: OidcProvider, **more: Any) -> None:
        oidc = {
            "issuer": provider.issuer,
            "client_id": provider.client_id,
            "redirect_uri": f"{HOME}/v1/auth/oidc/callback",
            "role_map": {"*": {"test": "viewer"}, "makers": {"test": "operator"}},
            **more,
        }
        settings = Settings(
            app_database_url=database.app_url, auth=AuthSettings(oidc=OidcSettings(**oidc))
        )
        self.database = database
        self.app = create_app(settings)

    def browser(self) -> TestClient:
        """A browser that has visited nothing yet."""
        return TestClient(self.app, HOME, follow_redirects=False)


@pytest.fixture
def site(database: Any, provider: OidcProvider) -> Site:
    """The service, with the usual settings."""
    return Site(database, provider)


def come_back_url(browser: Any, path: str = "/") -> str:
    """Where the provider sends the browser back to."""
    there = browser.get("/v1/auth/oidc/login", params={"next": path})
    assert there.status_code == 303, there.text
    answer = httpx.get(there.headers["location"], trust_env=False)
    assert answer.status_code == 302
    return str(answer.headers["location"])


def test_a_person_signs_in_with_the_roles_of_the_groups(site: Site, provider: OidcProvider) -> None:
    provider.claims = {"groups": ["makers", "others"]}
    with site.browser() as browser:
        back = browser.get(come_back_url(browser, "/agents/desk?tab=runs"))
        assert back.status_code == 303, back.text
        assert back.headers["location"] == "/agents/desk?tab=runs"
        told = browser.get("/v1/auth/session").json()
        assert (told["email"], told["project"]["role"]) == ("anna@example.org", "operator")
        # The same person again, with a group less: one person, and the role that is left.
        provider.claims = {"groups": []}
        browser.get(come_back_url(browser))
        assert browser.get("/v1/auth/session").json()["project"]["role"] == "viewer"
    rows = site.database.query('select email, issuer, password_hash from "user"')
    assert rows == [("anna@example.org", provider.issuer, "")]
    actions = site.database.query(
        "select action, actor from audit_event where action not like 'session%%' order by seq"
    )
    by = "identity provider"
    assert actions == [("user.sign_up", by), ("role.bind", by), ("role.bind", by)]


def other_key(header: dict[str, Any], claims: dict[str, Any]) -> str:
    return jwt.encode(header, claims, RSAKey.generate_key(2048))


def no_signature(header: dict[str, Any], claims: dict[str, Any]) -> str:
    parts = [{**header, "alg": "none"}, claims]
    raw = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return ".".join([*(part.decode() for part in raw), ""])


def shared_secret(header: dict[str, Any], claims: dict[str, Any]) -> str:
    key = OctKey.import_key("only for tests, and long enough to sign with")
    return jwt.encode({"alg": "HS256"}, claims, key, algorithms=["HS256"])


def with_claims(**changes: Any) -> Any:
    def tamper(_header: dict[str, Any], claims: dict[str, Any]) -> None:
        claims.update(changes)

    return tamper


def without(name: str) -> Any:
    def tamper(_header: dict[str, Any], claims: dict[str, Any]) -> None:
        del claims[name]

    return tamper


@pytest.mark.parametrize(
    ("name", "tamper"),
    [
        ("another issuer", with_claims(iss="https://evil.example")),
        ("another audience", with_claims(aud="somebody-else")),
        ("several audiences, made for another", with_claims(aud=["instar", "x"], azp="x")),
        ("several audiences, made for nobody", with_claims(aud=["instar", "x"])),
        ("expired", with_claims(exp=int(time.time()) - 3600)),
        ("no end", without("exp")),
        ("another nonce", with_claims(nonce="replayed")),
        ("no nonce", without("nonce")),
        ("no subject", with_claims(sub="")),
        ("unverified address", with_claims(email_verified=False)),
        ("address said to be verified in words", with_claims(email_verified="true")),
        ("no word about the address", without("email_verified")),
        ("no address", without("email")),
        ("another key", other_key),
        ("no signature", no_signature),
        ("a shared secret", shared_secret),
        ("no token", lambda _header, _claims: ""),
    ],
)
def test_a_token_that_does_not_hold_opens_nothing(
    site: Site, provider: OidcProvider, name: str, tamper: Any
) -> None:
    provider.tamper = tamper
    with site.browser() as browser:
        answer = browser.get(come_back_url(browser))
        assert answer.status_code == 401, (name, answer.text)
        assert browser.get("/v1/auth/session").status_code == 401
    assert site.database.query('select count(*) from "user"') == [(0,)]
    assert site.database.query("select count(*) from session") == [(0,)]


def test_a_state_serves_once_and_only_the_browser_that_began(
    site: Site, provider: OidcProvider
) -> None:
    with site.browser() as browser:
        url = come_back_url(browser)
        # An attacker's link makes a victim's browser finish the attacker's sign-in.
        begun = {"Cookie": f"instar_sign_in={browser.cookies['instar_sign_in']}"}
        browser.cookies.clear()
        assert browser.get(url).status_code == 401
        # Looked at once, it is spent, whoever looked.
        assert browser.get(url, headers=begun).status_code == 401
        url = come_back_url(browser)
        begun = {"Cookie": f"instar_sign_in={browser.cookies['instar_sign_in']}"}
        assert browser.get(url).status_code == 303
        browser.cookies.clear()
        assert browser.get(url, headers=begun).status_code == 401
        state = parse_qs(urlsplit(come_back_url(browser)).query)["state"][0]
        made_up = f"/v1/auth/oidc/callback?code=x&state={state}&iss={provider.issuer}"
        assert browser.get(made_up).status_code == 401, "a code that nobody gave"
        unknown = "/v1/auth/oidc/callback?code=x&state=never-begun"
        assert browser.get(unknown).status_code == 401
        url = come_back_url(browser)
        site.database.query("update sign_in set expires_at = now() - interval '1 second'")
        assert browser.get(url).status_code == 401, "too late"


def test_a_code_is_used_once_and_bound_to_who_asked(site: Site, provider: OidcProvider) -> None:
    with site.browser() as browser:
        first = come_back_url(browser)
        code = parse_qs(urlsplit(first).query)["code"][0]
        assert browser.get(first).status_code == 303
        for stolen in (code, parse_qs(urlsplit(come_back_url(browser)).query)["code"][0]):
            query = parse_qs(urlsplit(come_back_url(browser)).query)
            answer = browser.get(
                "/v1/auth/oidc/callback",
                params={"code": stolen, "state": query["state"][0], "iss": provider.issuer},
            )
            assert answer.status_code == 401, answer.text


def test_an_answer_of_another_issuer_is_refused(site: Site, provider: OidcProvider) -> None:
    with site.browser() as browser:
        for issuer in ("https%3A%2F%2Fevil.example", ""):
            url, _, _ = come_back_url(browser).partition("&iss=")
            answer = browser.get(f"{url}&iss={issuer}" if issuer else url)
            assert answer.status_code == 401 and "issuer" in answer.json()["detail"]


def test_only_allowed_domains_and_people_with_a_role_sign_in(
    database: Any, provider: OidcProvider
) -> None:
    strict = Site(database, provider, allowed_domains=["example.com"])
    with strict.browser() as browser:
        assert browser.get(come_back_url(browser)).status_code == 401
    nobody = Site(database, provider, role_map={"makers": {"test": "viewer"}})
    with nobody.browser() as browser:
        assert browser.get(come_back_url(browser)).status_code == 403
    assert database.query('select count(*) from "user"') == [(0,)]
    plain = Site(database, provider)
    with plain.browser() as browser:
        assert browser.get(come_back_url(browser)).status_code == 303
        database.query('update "user" set disabled_at = now()')
        assert browser.get("/v1/auth/session").status_code == 401
        assert browser.get(come_back_url(browser)).status_code == 403


def test_a_provider_that_changes_its_key_is_believed_and_one_that_lies_is_not(
    database: Any, provider: OidcProvider
) -> None:
    site = Site(database, provider)
    with site.browser() as browser:
        assert browser.get(come_back_url(browser)).status_code == 303
        provider.key = replace(provider).key.generate_key(2048, {"kid": "one"})
        assert browser.get(come_back_url(browser)).status_code == 303
    provider.discovered = {"issuer": "https://evil.example"}
    with Site(database, provider).browser() as browser:
        assert browser.get("/v1/auth/oidc/login").status_code == 503
    provider.discovered = {"token_endpoint": "http://10.0.0.1/token"}
    with Site(database, provider).browser() as browser:
        assert browser.get("/v1/auth/oidc/login").status_code == 409
    with Site(database, provider, issuer="").browser() as browser:
        assert browser.get("/v1/auth/oidc/login").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/\t/evil.example",
        "/a\r\nSet-Cookie: x=y",
        " /a",
        "javascript:alert(1)",
        "evil",
        "",
    ],
)
def test_a35_signing_in_leads_nowhere_else(site: Site, path: str) -> None:
    with pytest.raises(UserError, match="no path of this service"):
        check_next(path)
    with site.browser() as browser:
        answer = browser.get("/v1/auth/oidc/login", params={"next": path})
        assert answer.status_code == 400
        assert "location" not in answer.headers


def test_addresses_are_encrypted_or_this_machines() -> None:
    for fine in ("https://id.example.org/x", "http://127.0.0.1:1/x", "http://localhost/x"):
        check_outbound(fine)
    for wrong in (
        "http://id.example.org",
        "http://10.0.0.1/",
        "http://127.0.0.1.evil.example/",
        "file:///etc/passwd",
        "https://",
        "https://user@host/",
        "",
        "http://[",
    ):
        with pytest.raises(PrerequisiteError):
            check_outbound(wrong)
