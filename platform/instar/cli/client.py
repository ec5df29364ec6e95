"""The client: talks REST to the service, found by its status file, with the key of this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from instar.settings import Settings, load_settings
from instar_core.base import new_id
from instar_core.errors import (
    ConflictError,
    InfrastructureError,
    InstarError,
    NotFoundError,
    PermissionDenied,
    PrerequisiteError,
    TaskFileError,
    UserError,
)

if TYPE_CHECKING:
    import httpx

__all__ = ["Client", "path_of", "problem_error"]

_TIMEOUT_S = 600.0
_CONNECT_S = 5.0
_KINDS: dict[int, type[InstarError]] = {
    400: UserError,
    401: PermissionDenied,
    403: PermissionDenied,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    422: UserError,
    428: ConflictError,
}


class Raw(NamedTuple):
    """A body that is no JSON."""

    data: bytes
    media_type: str


def path_of(*parts: str) -> str:
    """A path under ``/v1`` of parts that are quoted one by one."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


class Client:
    """Requests to the running service; errors arrive as Instar's own, with their remedies.

    Args:
        settings: Where the data directory is; this process's settings when left out.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or load_settings()
        self.base_url = self._find_url()
        self._key = self._find_key()

    def get(self, path: str, **query: Any) -> Any:
        """The JSON answer to a GET; query values that are ``None`` are left out."""
        return self._call("GET", path, query=query)

    def post(self, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """The JSON answer to a POST, sent with this idempotency key or a fresh one."""
        return self._call("POST", path, body=body, key=key)

    def upload(self, path: str, data: bytes, media_type: str, **query: Any) -> Any:
        """The JSON answer to a POST of bytes as they are."""
        return self._call("POST", path, body=Raw(data, media_type), query=query)

    def download(self, path: str, body: Any = None) -> bytes:
        """The bytes that a POST is answered with."""
        return self._send("POST", path, body=body).content

    def put(self, path: str, body: Any = None, *, match: str | None = None) -> Any:
        """The JSON answer to a PUT; ``match`` is the ETag of the state that it changes."""
        return self._call("PUT", path, body=body, match=match)

    def patch(self, path: str, body: Any = None, *, match: str | None = None) -> Any:
        """The JSON answer to a PATCH; ``match`` is the ETag of the state that it changes."""
        return self._call("PATCH", path, body=body, match=match)

    def delete(self, path: str, **query: Any) -> Any:
        """The JSON answer to a DELETE, if it has one."""
        return self._call("DELETE", path, query=query)

    def etag(self, path: str) -> str | None:
        """The ETag of what is there now, for a change of it; ``None`` where there is nothing."""
        try:
            headers: Mapping[str, str] = self._send("GET", path).headers
            return headers.get("etag")
        except NotFoundError:
            return None

    def pages(self, path: str, **query: Any) -> Iterator[Any]:
        """Every item of a list, page after page."""
        after: str | None = None
        while True:
            page = self.get(path, **query, after=after)
            yield from page["data"]
            after = page.get("next")
            if not after:
                return

    def _find_url(self) -> str:
        named = os.environ.get("INSTAR_URL")
        if named:
            return named.rstrip("/")
        from instar.embedded.detach import read_running

        running = read_running(self._settings)
        if running is not None:
            return running.api
        return f"http://{self._settings.api.host}:{self._settings.api.port}"

    def _find_key(self) -> str:
        named = os.environ.get("INSTAR_API_KEY")
        if named:
            return named
        from instar.embedded.layout import Layout

        path = Layout(self._settings.data_dir.expanduser().absolute()).api_key
        try:
            return path.read_text(encoding="ascii").strip()
        except OSError as error:
            raise PrerequisiteError(
                f"there is no API key: {str(path)!r} cannot be read ({error.strerror}).",
                remedy="Start the service as this user (`instar up`), or set INSTAR_API_KEY.",
            ) from error

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: dict[str, Any] | None = None,
        key: str | None = None,
        match: str | None = None,
    ) -> Any:
        if method == "POST":
            key = key or new_id()
        sent = {"Idempotency-Key": key, "If-Match": match}
        answer = self._send(method, path, body=body, query=query, headers=sent)
        return answer.json() if answer.content else None

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: dict[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> httpx.Response:
        import httpx

        asked = {name: value for name, value in (headers or {}).items() if value is not None}
        asked["Authorization"] = f"Bearer {self._key}"
        sent: dict[str, Any] = {"json": body}
        if isinstance(body, Raw):
            sent = {"content": body.data}
            asked["Content-Type"] = body.media_type
        wanted = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            answer = httpx.request(
                method,
                self.base_url + path,
                params=wanted,
                headers=asked,
                timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S),
                trust_env=False,
                **sent,
            )
        except httpx.TransportError as error:
            raise InfrastructureError(
                f"the service at {self.base_url} does not answer ({type(error).__name__}).",
                remedy="Start it with `instar up`, or name another with INSTAR_URL.",
            ) from error
        if answer.status_code >= 400:
            raise problem_error(answer.status_code, answer.text)
        return answer


def problem_error(status: int, text: str) -> InstarError:
    """The error that a problem document describes."""
    try:
        problem = json.loads(text)
        words = str(problem.get("detail") or problem.get("title") or text)
        code = str(problem.get("type", "")).rpartition(":")[2]
        for place in problem.get("errors") or ():
            one = f"{place.get('where')}: {place.get('what')}"
            if one not in words:
                words += f" [{one}]"
    except (ValueError, AttributeError):
        words, code = f"the service answered {status}: {text[:300]}", ""
    if code == "task-file":
        return TaskFileError(words)
    return _KINDS.get(status, InfrastructureError)(words)
