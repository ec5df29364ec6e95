"""Jobs: what a run may do with artifacts. It adds versions where it may, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import (
    ArtifactRef,
    Draft,
    create_version,
    describe_artifact,
    encode_content,
    read_artifact,
    resolve,
    set_job_access,
)
from instar.store.audit import Author, first_broken_link
from instar.store.labels import (
    LabelMove,
    delete_artifact,
    delete_label,
    delete_version,
    list_label_events,
    move_label,
    protect_label,
    restore_artifact,
    restore_version,
)
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.base import new_id
from instar_core.errors import PermissionDenied

pytestmark = pytest.mark.postgres

ANNA = Author("person", "anna")
RUN = Author("run", new_id())


def _ref(database: MigratedDatabase, name: str = "greeting") -> ArtifactRef:
    return ArtifactRef(database.project_id, "prompt", name)


def _draft(words: str, author: Author) -> Draft:
    return Draft(*encode_content(words), author)


def test_s15_a_persons_artifact_is_read_only_to_jobs_until_it_is_opened(
    database: MigratedDatabase,
) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        async with db.transaction(ref.project_id) as session:
            first = await create_version(session, ref, _draft("by hand", ANNA))
        with pytest.raises(PermissionDenied, match="read-only to jobs"):
            async with db.transaction(ref.project_id) as session:
                await create_version(session, ref, _draft("learned", RUN))
        async with db.transaction(ref.project_id) as session:
            # What is there already is no change, so using it again is no write.
            same = await create_version(session, ref, _draft("by hand", RUN), reuse=True)
            assert same.id == first.id
            before = (await resolve(session, ref)).etag
            await set_job_access(session, ref, "overlay", ANNA)
            assert (await resolve(session, ref)).etag != before
        async with db.transaction(ref.project_id) as session:
            learned = await create_version(session, ref, _draft("learned", RUN))
            assert (learned.origin, learned.base_id) == ("overlay", first.id)
            assert learned.run_id == RUN.name
            again = await create_version(session, ref, _draft("learned more", RUN))
            # Overlays do not pile up: each lies on the person's version.
            assert (again.origin, again.base_id) == ("overlay", first.id)
        async with db.transaction(ref.project_id) as session:
            assert await first_broken_link(session, ref.project_id) is None
            assert await first_broken_link(session, ref.project_id, RUN.name) is None

    database.run(work)
    streams = database.query("select stream, count(*) from audit_event group by 1 order by 1")
    assert streams == [(RUN.name, 2), ("admin", 2)]


def test_what_a_job_made_is_open_to_jobs(database: MigratedDatabase) -> None:
    ref = _ref(database, "learned")

    async def work(db: Database) -> None:
        async with db.transaction(ref.project_id) as session:
            assert (await create_version(session, ref, _draft("one", RUN))).origin == "save"
            assert (await create_version(session, ref, _draft("two", RUN))).number == 2
            assert (await read_artifact(session, ref)).owner_kind == "run"

    database.run(work)


def test_a_person_opens_and_closes_by_saving_too(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> list[str]:
        seen = []
        for author, access in ((ANNA, "overlay"), (RUN, "none"), (ANNA, None), (ANNA, "none")):
            async with db.transaction(ref.project_id) as session:
                draft = Draft(*encode_content(str(access)), author, job_access=access)  # type: ignore[arg-type]
                await create_version(session, ref, draft)
                seen.append((await read_artifact(session, ref)).job_access)
        return seen

    # A job's own wish changes nothing.
    assert database.run(work) == ["overlay", "overlay", "overlay", "none"]


@pytest.mark.parametrize(
    "act",
    [
        lambda s, r: describe_artifact(s, r, RUN, description="mine"),
        lambda s, r: set_job_access(s, r, "overlay", RUN),
        lambda s, r: move_label(s, r, LabelMove("staging", 2, 1), RUN),
        lambda s, r: move_label(s, r, LabelMove("new", 2, None, role="admin"), RUN),
        lambda s, r: delete_label(s, r, "staging", RUN, unlock=True),
        lambda s, r: protect_label(s, r, "staging", RUN, role="operator"),
        lambda s, r: delete_version(s, r, 2, RUN),
        lambda s, r: restore_version(s, r, 2, RUN),
        lambda s, r: delete_artifact(s, r, RUN),
        lambda s, r: restore_artifact(s, r, RUN),
    ],
)
def test_s16_jobs_describe_archive_restore_and_move_nothing(
    database: MigratedDatabase, act: Callable[[AsyncSession, ArtifactRef], Awaitable[object]]
) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        async with db.transaction(ref.project_id) as session:
            for words in ("one", "two"):
                draft = Draft(*encode_content(words), ANNA, job_access="overlay")
                await create_version(session, ref, draft)
            await move_label(session, ref, LabelMove("staging", 1, None), ANNA)
        before = database.query("select * from audit_event order by seq")
        with pytest.raises(PermissionDenied, match="a job may not"):
            async with db.transaction(ref.project_id) as session:
                await act(session, ref)
        assert database.query("select * from audit_event order by seq") == before

    database.run(work)


def test_a_promotion_moves_a_label_for_a_job(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        async with db.transaction(ref.project_id) as session:
            await create_version(session, ref, _draft("one", ANNA))
            move = LabelMove("production", 1, None, "proposal", unlock=True, run_id=RUN.name)
            await move_label(session, ref, move, RUN)
            events = await list_label_events(session, ref)
            assert [(e.actor_kind, e.cause, e.run_id) for e in events] == [
                ("run", "proposal", RUN.name)
            ]
            assert await first_broken_link(session, ref.project_id, RUN.name) is None

    database.run(work)
