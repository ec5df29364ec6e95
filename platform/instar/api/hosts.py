"""Hosts: which names this service answers to, and what every answer forbids browsers to do.

A page elsewhere can make its own name point at this machine (DNS rebinding) and then talk to the
service as if from its own origin. The name is in the Host header, so names that nobody configured
are refused, whatever the credential.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from instar.api.problems import problem_response
from instar.settings import ApiSettings

__all__ = ["HostGuard", "host_name", "is_loopback", "same_origin"]

# Asked by machines that know no name: says that the process lives, nothing else.
_FREE: Final = frozenset({"/healthz"})
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name other than localhost counts as not."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def host_name(host: str) -> str:
    """The name in a Host header, without port, in lower case; empty where there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def same_origin(headers: Headers) -> bool:
    """Whether a browser sent the request from this service's own pages, or no browser did."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
        ours = urlsplit(f"{parts.scheme}://{headers.get('host', '')}")
        default = {"http": 80, "https": 443}.get(parts.scheme)
        return (
            default is not None
            and bool(parts.hostname)
            and parts.hostname == ours.hostname
            and (parts.port or default) == (ours.port or default)
        )
    except ValueError:
        return False


class HostGuard:
    """Middleware that answers 403 to names that are not this service's.

    Args:
        app: The application behind it.
        settings: Says where the service binds, and under which names people reach it.
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self.app = app
        names = (settings.host, *settings.allowed_hosts)
        self.allowed = frozenset(host_name(name) or name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        name = host_name(Headers(scope=scope).get("host", ""))
        if scope["path"] not in _FREE and not (name in self.allowed or is_loopback(name)):
            await self._refuse(name, scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for key, value in _HEADERS.items():
                    headers.setdefault(key, value)
                if scope["path"].startswith("/v1/auth/"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app(scope, receive, guarded)

    async def _refuse(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        response = problem_response(
            Request(scope),
            "forbidden",
            f"This service does not answer to the name {name[:100]!r}. Add it to "
            "INSTAR_API__ALLOWED_HOSTS if it is yours.",
        )
        await response(scope, receive, send)
