"""The catalogue: the newest content of many artifacts, whatever lies under it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.dialects import postgresql

from instar.registry.contract import project_contract
from instar.store import catalogue
from instar.store.artifacts import ArtifactRef, Draft, create_version, encode_content
from instar.store.audit import Author
from instar.store.catalogue import count_newest, list_newest
from instar.store.labels import delete_version
from instar.store.session import Database
from instar.store.tables import ArtifactRow
from instar.store.testing import MigratedDatabase

pytestmark = pytest.mark.postgres
ANNA = Author("person", "anna")
_MANY = """
insert into instar.version (id, project_id, artifact_id, number, blob_digest, media_type,
  subject_digest, author_kind, author, reason, origin)
select gen_random_uuid(), v.project_id, v.artifact_id, n, v.blob_digest, v.media_type,
  '', 'person', 'anna', '', 'save'
from instar.version v, generate_series(2, 3000) n where v.artifact_id = %s
"""


async def _save(session: Any, project: str, name: str, content: str) -> str:
    ref = ArtifactRef(project, "prompt", name)
    draft = Draft(*encode_content(content), ANNA)
    return (await create_version(session, ref, draft)).artifact_id


def test_the_newest_live_version_of_each_is_listed_and_counted(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            for name, contents in {"a": ("one", "two"), "b": ("three",), "c": ("four",)}.items():
                for content in contents:
                    await _save(session, project, name, content)
            await delete_version(session, ArtifactRef(project, "prompt", "a"), 2, ANNA)
            await delete_version(session, ArtifactRef(project, "prompt", "c"), 1, ANNA)
            found = await list_newest(session, project, "prompt")
            assert [(one.artifact.name, one.number, one.content) for one in found] == [
                ("a", 1, "one"),
                ("b", 1, "three"),
            ]
            assert await count_newest(session, project) == 2
            assert await count_newest(session, project, "skill") == 0

    database.run(work)


def test_a_contract_says_how_many_artifacts_it_did_not_read(
    database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = database.project_id
    monkeypatch.setattr(catalogue.list_newest, "__kwdefaults__", {"limit": 2})

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            for name in "abcde":
                await _save(session, project, name, f"text {name}")
            found = await project_contract(session, project)
            assert [one.name for one in found.entries] == ["a", "b"]
            assert found.unread == 3
            assert "3 more entries are not listed" in found.text.splitlines()[-1]

    database.run(work)


def test_many_versions_of_one_artifact_are_not_read_to_find_its_newest(
    database: MigratedDatabase,
) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            artifact = await _save(session, project, "a", "one")
            await _save(session, project, "b", "two")
        database.query(_MANY, artifact)
        database.query("analyze instar.version")
        query = catalogue._newest().where(ArtifactRow.project_id == project)  # noqa: SLF001
        sql = query.compile(
            dialect=postgresql.dialect(),  # type: ignore[no-untyped-call]
            compile_kwargs={"literal_binds": True},
        )
        async with db.transaction(project) as session:
            explained = await session.scalar(text(f"explain (analyze, format json) {sql}"))
        assert _touched(explained[0]["Plan"]) < 100

    database.run(work)


def _touched(plan: dict[str, Any]) -> int:
    """Rows of versions that a plan's scans gave or threw away."""
    own = 0
    if plan.get("Relation Name") == "version":
        removed = sum(int(plan[key]) for key in plan if key.startswith("Rows Removed"))
        own = (int(plan["Actual Rows"]) + removed) * int(plan["Actual Loops"])
    return own + sum(_touched(one) for one in plan.get("Plans", ()))
