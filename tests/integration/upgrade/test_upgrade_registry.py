"""Old artifacts under the new rules: open to jobs where they were, found by words, told apart."""

from __future__ import annotations

from typing import Any

import pytest

from instar.store.artifacts import (
    ArtifactFilter,
    ArtifactRef,
    Draft,
    create_version,
    list_artifacts,
)
from instar.store.audit import SYSTEM
from instar.store.migrate import upgrade
from instar.store.session import Database
from instar.store.testing import APP_PASSWORD, MigratedDatabase
from instar_core.errors import InvalidContent

pytestmark = pytest.mark.postgres


def _plant(database: MigratedDatabase, project: str) -> None:
    """Names that no rule of today would let in, and two that look alike."""
    for number, name in enumerate(
        ("Twin", "twin", "my prompt", "..", "\u0442\u0451\u0437\u043a\u0430")
    ):
        database.query(
            "insert into instar.artifact (id, project_id, kind, name, created_at) values "
            "(gen_random_uuid(), %s, 'prompt', %s, now() + %s * interval '1 second')",
            project,
            name,
            number,
        )


def test_s113_old_artifacts_keep_their_names_and_are_open_to_jobs_where_they_were(
    released: Any,
) -> None:
    database, project = released.database, released.told["project"]
    _plant(database, project)
    upgrade(database.owner_url, app_password=APP_PASSWORD)
    agents = database.query("select distinct job_access from artifact where kind = 'agent'")
    assert agents == [("overlay",)]
    trainable = database.query(
        "select distinct a.job_access, c ->> 'trainable' from version v join artifact owner "
        "on owner.id = v.artifact_id and owner.kind = 'agent' "
        "join blob b on b.digest = v.blob_digest and b.project_id = v.project_id "
        "cross join lateral "
        "json_array_elements(convert_from(b.content, 'UTF8')::json -> 'components') c "
        "join version_part p on p.version_id = v.id and p.name = c ->> 'name' "
        "join version part on part.id = p.part_id join artifact a on a.id = part.artifact_id"
    )
    assert ("overlay", "true") in trainable
    assert ("none", "true") not in trainable and ("overlay", "false") not in trainable
    hand_made = database.query(
        "select distinct job_access from artifact where name in ('Twin', 'twin', 'my prompt')"
    )
    assert hand_made == [("none",)]
    looks = database.query(
        "select name, skeleton from artifact where created_at > now() - interval '1 hour' "
        "and kind = 'prompt' and last_version = 0 order by created_at"
    )
    assert looks[:4] == [("Twin", "twin"), ("twin", ""), ("my prompt", ""), ("..", "..")]
    assert database.query(
        "select count(*) from artifact where last_version > 0 and search = ''::tsvector"
    ) == [(0,)]

    sealed = database.query("select task_id from task where split = 'sealed' limit 1")

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            # Task sets are found by name, and never by what is sealed in them.
            where = ArtifactFilter(kind="task_set", q=sealed[0][0])
            assert not (await list_artifacts(session, project, where=where)).items
        for name in ("Twin", "twin", "my prompt", ".."):
            async with db.transaction(project) as session:
                draft = Draft(b"words of old", "text/plain; charset=utf-8", SYSTEM)
                saved = await create_version(session, ArtifactRef(project, "prompt", name), draft)
                assert saved.number == 1
        for name in ("TWIN", "\uff54win", "no good"):
            with pytest.raises(InvalidContent):
                async with db.transaction(project) as session:
                    await create_version(session, ArtifactRef(project, "prompt", name), draft)
        async with db.transaction(project) as session:
            where = ArtifactFilter(q="words old")
            page = await list_artifacts(session, project, where=where)
            assert {row.name for row in page.items} >= {"Twin", "twin", "my prompt", ".."}

    database.run(work)
