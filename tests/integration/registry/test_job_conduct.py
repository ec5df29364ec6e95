"""What a job may do with what people made: add overlays where it is let, propose, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from instar.registry.merging import MergeWish, merge_versions
from instar.registry.restore import restore_before_run
from instar.store.artifacts import ArtifactRef, describe_artifact
from instar.store.audit import Author
from instar.store.labels import LabelMove, delete_artifact, delete_version, move_label
from instar.store.session import Database
from instar_core.base import new_id
from instar_core.errors import NotFoundError, PermissionDenied, StoreError

pytestmark = pytest.mark.postgres
ANNA = Author("person", "user:anna")

_OWNED = (
    "select v.id::text, v.blob_digest, v.reason, v.author, (v.deleted_at is null)::text, a.kind,"
    " a.name, a.description, (a.deleted_at is null)::text from version v"
    " join artifact a on a.id = v.artifact_id where v.author_kind = 'person' order by v.id"
)


def test_s15_a_night_adds_overlays_and_a_proposal_and_touches_nothing_of_a_person(
    database: Any, nights: Any
) -> None:
    async def work(db: Database) -> None:
        await nights.register(db)
        before = database.query(_OWNED)
        labels = database.query("select artifact_id, name, number, epoch from label")
        status = await nights.night(db)
        assert status.state == "succeeded"
        assert database.query(_OWNED) == before
        assert database.query("select artifact_id, name, number, epoch from label") == labels
        made = database.query(
            "select v.origin, v.base_id is not null, a.job_access, v.run_id::text from version v"
            " join artifact a on a.id = v.artifact_id where v.author_kind = 'run'"
        )
        assert made and {row[3] for row in made} == {status.id}
        assert set(made) <= {("overlay", True, "overlay", status.id)}
        assert database.query("select state from proposal") == [("waiting",)]
        did = {
            row[0]
            for row in database.query("select action from audit_event where actor_kind = 'run'")
        }
        assert not {one for one in did if one.startswith(("label.", "version."))}
        assert not did & {"artifact.archive", "artifact.describe", "artifact.restore"}

    database.run(work)


def test_s15_jobs_neither_archive_describe_merge_relabel_nor_restore(
    database: Any, nights: Any
) -> None:
    project = database.project_id
    run = Author("run", new_id())
    agent = ArtifactRef(project, "agent", "desk")
    wish = MergeWish("1", "1")

    async def work(db: Database) -> None:
        await nights.register(db)

        async def refused(act: Any) -> None:
            with pytest.raises(PermissionDenied, match="a job may not"):
                async with db.transaction(project) as session:
                    await act(session)

        await refused(lambda s: delete_version(s, agent, 1, run))
        await refused(lambda s: delete_artifact(s, agent, run))
        await refused(lambda s: describe_artifact(s, agent, run, description="mine"))
        await refused(lambda s: move_label(s, agent, LabelMove("staging", 1, None), run))
        await refused(lambda s: merge_versions(s, agent, MergeWish("1", "1", dry_run=False), run))
        await refused(lambda s: restore_before_run(s, project, new_id(), run))
        # Looking at what a merge would be is no change.
        async with db.transaction(project) as session:
            assert (await merge_versions(session, agent, wish, run)).clean

    database.run(work)


def test_s107_the_same_name_in_another_project_stays_where_it_is(
    database: Any, nights: Any
) -> None:
    project, other = database.project_id, new_id()
    database.query("insert into project (id, name) values (%s, 'other')", other)

    async def work(db: Database) -> None:
        await nights.register(db)
        with pytest.raises(NotFoundError):
            async with db.transaction(other) as session:
                await delete_artifact(session, ArtifactRef(other, "agent", "desk"), ANNA)
        with pytest.raises(StoreError, match="row-level security"):
            # The right project's name in the wrong project's transaction meets the wall.
            async with db.transaction(other) as session:
                await delete_artifact(session, ArtifactRef(project, "agent", "desk"), ANNA)
        assert database.query("select count(*) from artifact where deleted_at is not null") == [
            (0,)
        ]

    database.run(work)
