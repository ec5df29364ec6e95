"""The service behind the routes: settings, database, agents; one per process, made at start-up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from instar.api.problems import ProblemError
from instar.models.base import Embedder, ModelClient
from instar.runtime.service import AgentService
from instar.settings import Settings
from instar.store.keyring import KeySource
from instar.store.migrate import UNREACHABLE, Readiness, check
from instar.store.secrets import check_keys
from instar.store.session import Database
from instar.store.system import has_credential
from instar_core.errors import PrerequisiteError

__all__ = ["Overrides", "Service", "database_url"]

_CHECK_EVERY_S = 2.0
# A newer version may upgrade the schema while this one serves: it must notice, and stop writing.
_LOOK_AGAIN_S = 10.0
_BROKER_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a test or an embedding program puts in place of the service's own parts."""

    models: Callable[[str], ModelClient] | None = None
    embedder: Embedder | None = None


def database_url(settings: Settings) -> str:
    """The URL of the service's own role.

    Raises:
        PrerequisiteError: If the settings name none.
    """
    if settings.app_database_url:
        return settings.app_database_url
    raise PrerequisiteError(
        "The API has no database: INSTAR_APP_DATABASE_URL is not set.",
        remedy="Start everything with `instar up`, which sets it, or set it to the URL of the role "
        "instar_app.",
    )


@dataclass(slots=True)
class Service:
    """What every request shares. Open it in the event loop that serves."""

    settings: Settings
    db: Database
    agents: AgentService
    keys: KeySource
    _ready: bool = False
    _checked: float = field(default=float("-inf"))
    _reason: str = ""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def open(cls, settings: Settings, overrides: Overrides) -> Service:
        """The service of this process; opens no connection yet."""
        limit = settings.registry.max_content_bytes
        db = Database(database_url(settings), max_content_bytes=limit)
        agents = AgentService(db, settings, models=overrides.models, embedder=overrides.embedder)
        return cls(settings=settings, db=db, agents=agents, keys=KeySource.of(settings))

    async def close(self) -> None:
        """Ends tool servers and connections."""
        await self.agents.close()
        await self.db.close()

    async def has_credential(self) -> bool:
        """Whether any project has a key that works, or a person who can sign in."""
        async with self.db.system() as session:
            return await has_credential(session)

    async def schema(self) -> Readiness:
        """Whether the database has exactly this version's schema, asked anew."""
        return await asyncio.to_thread(check, self.db.url)

    async def secrets(self) -> str:
        """``ok``, or why stored secrets cannot be opened with the keyring of this process."""
        return await check_keys(self.db, self.keys)

    async def broker(self) -> str:
        """``ok``, or what is wrong with the broker."""
        from redis.asyncio import Redis
        from redis.exceptions import RedisError

        url = self.settings.redis_url
        if not url:
            return "no broker is configured; set REDIS_URL or start with `instar up`"
        client = Redis.from_url(url, socket_connect_timeout=_BROKER_TIMEOUT_S)
        try:
            async with asyncio.timeout(_BROKER_TIMEOUT_S):
                await client.ping()
        except (RedisError, OSError, TimeoutError) as error:
            return f"the broker does not answer ({type(error).__name__})"
        finally:
            await client.aclose()
        return "ok"

    async def require_ready(self) -> None:
        """Lets requests through once the schema was found to be right, and the keys to fit.

        Raises:
            ProblemError: ``not-ready``, with the reason.
        """
        wait_s = _LOOK_AGAIN_S if self._ready else _CHECK_EVERY_S
        if self._ready and time.monotonic() - self._checked <= wait_s:
            return
        async with self._lock:
            if time.monotonic() - self._checked > wait_s:
                await self._look()
        if not self._ready:
            raise ProblemError("not-ready", f"The service is not ready: {self._reason}")

    async def _look(self) -> None:
        """Sees whether schema and keys are right; a database that is away is the request's matter
        once both were."""
        found = await self.schema()
        self._checked = time.monotonic()
        if self._ready and (found.ready or found.reason.startswith(UNREACHABLE)):
            return
        keys = await self.secrets() if found.ready else "ok"
        self._ready = found.ready and keys == "ok"
        self._reason = found.reason or keys
