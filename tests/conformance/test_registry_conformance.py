"""Every kind on every registry: one conformance suite, in memory and in Postgres."""

from __future__ import annotations

import asyncio

import pytest

from instar.registry.kinds import list_kinds, open_kind
from instar.registry.postgres import PostgresRegistry
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.registry.conformance import CHECKS, Check
from instar_core.registry.memory import MemoryRegistry


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", list_kinds())
def test_memory_registry_conforms(kind: str, check: Check) -> None:
    """A registry in memory does with each kind what the suite asks for."""
    asyncio.run(check(MemoryRegistry(open_kind), open_kind(kind)))


# One kind of each form is in the fast suite, and the two that are saved in their own way.
_FAST = ("agent", "lessons", "prompt", "skill", "task_set")
_KINDS = [
    kind if kind in _FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in list_kinds()
]


@pytest.mark.postgres
@pytest.mark.parametrize("kind", _KINDS)
def test_postgres_registry_conforms(database: MigratedDatabase, kind: str) -> None:
    """The registry in Postgres does with each kind what the suite asks for."""

    async def work(db: Database) -> None:
        registry = PostgresRegistry(db, database.project_id)
        for check in CHECKS:
            await check(registry, open_kind(kind))

    database.run(work)
