"""Self-evolution: one turn saves at most one version and moves at most one open label."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from instar.registry.kinds import open_kind
from instar.registry.postgres import PostgresRegistry
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.base import JsonValue
from instar_core.errors import NotFoundError, PermissionDenied
from instar_core.registry.memory import MemoryRegistry
from instar_core.registry.protocol import ANY, Actor, Change, Registry, VersionState
from instar_core.registry.self_evolution import (
    Assessment,
    Finding,
    Target,
    evolve,
    evolve_once,
)

CHANGE = Change(by=Actor(kind="person", name="ada"))
TARGET = Target(kind="prompt", name="greeting", label="staging")


class Longer:
    """A method that appends a word until there are enough; its evaluations follow a script."""

    def __init__(self, *verdicts: bool, enough: int = 10) -> None:
        self.verdicts = list(verdicts)
        self.enough = enough
        self.seen: list[int] = []

    async def reflect(self, incumbent: VersionState) -> Sequence[Finding]:
        self.seen.append(incumbent.number)
        words = str(incumbent.content).split()
        if len(words) >= self.enough:
            return []
        return [Finding(text=f"only {len(words)} words"), Finding(text="nothing else")]

    async def select(self, incumbent: VersionState, findings: Sequence[Finding]) -> Finding | None:
        return findings[0] if findings else None

    async def improve(self, incumbent: VersionState, finding: Finding) -> JsonValue:
        return f"{incumbent.content} more"

    async def evaluate(self, incumbent: VersionState, proposed: VersionState) -> Assessment:
        better = self.verdicts.pop(0) if self.verdicts else True
        return Assessment(better=better, evidence={"n": 3}, reason="it was tried")


async def _start(registry: Registry) -> None:
    await registry.create(TARGET.ref, "Be kind.", CHANGE)
    await registry.label(TARGET.ref, "staging", 1, expected=None, change=CHANGE)


async def _commits_and_stops(registry: Registry) -> None:
    await _start(registry)
    outcomes = await evolve(registry, TARGET, Longer(enough=4), CHANGE, turns=5)
    assert [one.state for one in outcomes] == ["committed", "committed", "unchanged"]
    found = await registry.read(TARGET.ref, "staging")
    assert (found.number, found.content) == (3, "Be kind. more more")
    assert found.parents == (2,) and found.reason == "improve: only 3 words"
    moves = await registry.history(TARGET.ref, "staging")
    assert [(move.before, move.after) for move in moves] == [(None, 1), (1, 2), (2, 3)]
    assert moves[-1].cause == "it was tried"


async def _rolls_back(registry: Registry) -> None:
    await _start(registry)
    rejected = await evolve_once(registry, TARGET, Longer(False), CHANGE)
    assert (rejected.state, rejected.proposed) == ("rejected", 2)
    assert len(await registry.history(TARGET.ref, "staging")) == 1
    back = await evolve_once(registry, TARGET, Longer(True, False), CHANGE)
    assert (back.state, back.before, back.proposed) == ("rolled_back", 1, 3)
    assert (await registry.read(TARGET.ref, "staging")).number == 1
    moves = await registry.history(TARGET.ref, "staging")
    assert [(move.before, move.after) for move in moves] == [(None, 1), (1, 3), (3, 1)]


async def _leaves_protected_labels(registry: Registry) -> None:
    await _start(registry)
    protected = Target(kind="prompt", name="greeting", label="production")
    operators = Longer()
    with pytest.raises(NotFoundError, match="'production'"):
        await evolve_once(registry, protected, operators, CHANGE)
    await registry.label(TARGET.ref, "production", 1, expected=None, change=CHANGE)
    with pytest.raises(PermissionDenied, match="protected"):
        await evolve_once(registry, protected, operators, CHANGE)
    assert operators.seen == []
    assert (await registry.read(TARGET.ref)).number == 1


async def _gives_way(registry: Registry) -> None:
    await _start(registry)

    class Slow(Longer):
        async def evaluate(self, incumbent: VersionState, proposed: VersionState) -> Assessment:
            # Somebody else moves the label while the proposed version is evaluated.
            other = (await registry.update(TARGET.ref, "Be brief.", CHANGE)).version
            await registry.label(TARGET.ref, "staging", other.number, expected=ANY, change=CHANGE)
            return Assessment(better=True)

    outcome = await evolve_once(registry, TARGET, Slow(), CHANGE)
    assert outcome.state == "stale"
    assert (await registry.read(TARGET.ref, "staging")).content == "Be brief."


def _name_of(scene: object) -> str:
    return str(getattr(scene, "__name__", scene)).strip("_")


Scene = Callable[[Registry], Coroutine[Any, Any, None]]
SCENES: tuple[Scene, ...] = (_commits_and_stops, _rolls_back, _leaves_protected_labels, _gives_way)


@pytest.mark.parametrize("scene", SCENES, ids=_name_of)
def test_self_evolution_in_memory(scene: Scene) -> None:
    asyncio.run(scene(MemoryRegistry(open_kind)))


@pytest.mark.postgres
@pytest.mark.parametrize("scene", SCENES, ids=_name_of)
def test_self_evolution_in_postgres(database: MigratedDatabase, scene: Scene) -> None:
    async def work(db: Database) -> None:
        await scene(PostgresRegistry(db, database.project_id))

    database.run(work)


def test_a_registry_works_without_the_service_in_a_few_lines() -> None:
    async def main() -> str:
        registry = MemoryRegistry(open_kind)
        await registry.create(TARGET.ref, "Be kind.", CHANGE)
        await registry.update(TARGET.ref, "Be kind, and brief.", CHANGE)
        await registry.label(TARGET.ref, "staging", 1, expected=None, change=CHANGE)
        await registry.label(TARGET.ref, "staging", 2, expected=1, change=CHANGE)
        await registry.roll_back(TARGET.ref, "staging", CHANGE)
        return str((await registry.read(TARGET.ref, "staging")).content)

    assert asyncio.run(main()) == "Be kind."
