"""A kind of another package: found by its entry point, held to the same suite as the built-in ones;
a broken one is named."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from instar.registry.kinds import list_kinds, open_kind
from instar.registry.postgres import PostgresRegistry
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.errors import NotFoundError, PrerequisiteError
from instar_core.registry.conformance import CHECKS
from instar_core.registry.memory import MemoryRegistry

PACKAGE = '''
"""A package that adds the kind 'rubric'."""

from pydantic import Field

from instar.registry.kinds.base import ModelKind
from instar_core.base import Frozen


class RubricContent(Frozen):
    """Points by name."""

    points: dict[str, int] = Field(min_length=1)


class Rubric(ModelKind[RubricContent]):
    """A rubric as an artifact."""

    name = "rubric"
    title = "points that an answer can earn"
    model = RubricContent
    budget_tokens = 500

    def examples(self):
        """Two rubrics."""
        return {"points": {"polite": 1}}, {"points": {"polite": 1, "right": 4}}


class Misnamed(Rubric):
    """Calls itself otherwise than its entry point."""


class Half:
    """Lacks most of what a kind has."""

    name = "half"
'''
POINTS = """[instar.kinds]
rubric = their_kinds:Rubric
absent = their_kinds:Nothing
gone = no_such_module_of_theirs:Kind
half = their_kinds:Half
other = their_kinds:Misnamed
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with one good kind and four broken ones."""
    (tmp_path / "their_kinds.py").write_text(PACKAGE)
    info = tmp_path / "their_kinds-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-kinds\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    open_kind.cache_clear()
    yield
    open_kind.cache_clear()
    sys.modules.pop("their_kinds", None)


@pytest.mark.usefixtures("package")
def test_a_third_party_kind_conforms_in_memory() -> None:
    assert "rubric" in list_kinds() and list_kinds()[:2] == ["prompt", "lessons"]
    for check in CHECKS:
        asyncio.run(check(MemoryRegistry(open_kind), open_kind("rubric")))


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.usefixtures("package")
def test_a_third_party_kind_conforms_in_postgres(database: MigratedDatabase) -> None:
    async def work(db: Database) -> None:
        registry = PostgresRegistry(db, database.project_id)
        for check in CHECKS:
            await check(registry, open_kind("rubric"))

    database.run(work)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "absent = their_kinds:Nothing.*AttributeError"),
        ("gone", "gone = no_such_module_of_theirs:Kind.*ModuleNotFoundError"),
        ("half", "half = their_kinds:Half.*lacks title, form"),
        ("other", "other = their_kinds:Misnamed.*calls itself 'rubric'"),
    ],
)
def test_a_broken_entry_point_is_named(name: str, words: str) -> None:
    with pytest.raises(PrerequisiteError, match=words):
        open_kind(name)


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="Did you mean 'skill'"):
        open_kind("skil")
    with pytest.raises(NotFoundError, match="Kinds: adapter, agent"):
        open_kind("zzzz")
