"""The client: talks REST to the service, found by its status file, with the key of this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
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
}


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

    def put(self, path: str, body: Any = None) -> Any:
        """The JSON answer to a PUT."""
        return self._call("PUT", path, body=body)

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
    ) -> Any:
        import httpx

        headers = {"Authorization": f"Bearer {self._key}"}
        if method == "POST":
            headers["Idempotency-Key"] = key or new_id()
        wanted = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            answer = httpx.request(
                method,
                self.base_url + path,
                json=body,
                params=wanted,
                headers=headers,
                timeout=httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S),
                trust_env=False,
            )
        except httpx.TransportError as error:
            raise InfrastructureError(
                f"the service at {self.base_url} does not answer ({type(error).__name__}).",
                remedy="Start it with `instar up`, or name another with INSTAR_URL.",
            ) from error
        if answer.status_code >= 400:
            raise problem_error(answer.status_code, answer.text)
        return answer.json() if answer.content else None


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
