"""Resolving: one statement, an ETag for everything it tells, and errors that name the nearest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import (
    ArtifactRef,
    Draft,
    create_version,
    describe_artifact,
    encode_content,
    resolve,
    set_job_access,
)
from instar.store.audit import Author
from instar.store.labels import (
    LabelMove,
    delete_artifact,
    delete_label,
    delete_version,
    move_label,
    restore_artifact,
    restore_version,
)
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.errors import ConflictError, NotFoundError

pytestmark = pytest.mark.postgres

ANNA = Author("person", "anna")
Act = Callable[[AsyncSession, ArtifactRef], Awaitable[object]]


def _ref(database: MigratedDatabase, name: str = "greeting") -> ArtifactRef:
    return ArtifactRef(database.project_id, "prompt", name)


async def _save(db: Database, ref: ArtifactRef, words: str) -> int:
    async with db.transaction(ref.project_id) as session:
        return (await create_version(session, ref, Draft(*encode_content(words), ANNA))).number


@pytest.mark.parametrize("at", ["staging", 1, "2", "latest"])
def test_resolving_is_one_statement_and_saving_another(
    database: MigratedDatabase, at: str | int
) -> None:
    ref = _ref(database)
    sent: list[str] = []

    async def work(db: Database) -> None:
        await _save(db, ref, "one")
        await _save(db, ref, "two")
        async with db.transaction(ref.project_id) as session:
            await move_label(session, ref, LabelMove("staging", 1, None), ANNA)
        async with db.transaction(ref.project_id) as session:
            bind = (await session.connection()).sync_connection
            assert bind is not None
            event.listen(bind, "before_cursor_execute", lambda *args: sent.append(args[2]))
            await resolve(session, ref, at)
            assert len(sent) == 1, sent
            await create_version(session, ref, Draft(*encode_content("three"), ANNA))
            assert len(sent) == 2, sent

    database.run(work)


@pytest.mark.parametrize(
    "change",
    [
        lambda s, r: describe_artifact(s, r, ANNA, description="Greets."),
        lambda s, r: describe_artifact(s, r, ANNA, tags=["new"]),
        lambda s, r: set_job_access(s, r, "overlay", ANNA),
        lambda s, r: move_label(s, r, LabelMove("staging", 2, 1), ANNA),
        lambda s, r: delete_version(s, r, 2, ANNA),
    ],
)
def test_s7_s7b_any_change_of_what_a_label_tells_changes_the_etag(
    database: MigratedDatabase, change: Act
) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        for words in ("one", "two", "three"):
            await _save(db, ref, words)
        async with db.transaction(ref.project_id) as session:
            await move_label(session, ref, LabelMove("staging", 1, None), ANNA)
        async with db.transaction(ref.project_id) as session:
            before = [(await resolve(session, ref, at)).etag for at in ("staging", "staging")]
            assert before[0] == before[1]
        async with db.transaction(ref.project_id) as session:
            await change(session, ref)
        async with db.transaction(ref.project_id) as session:
            assert (await resolve(session, ref, "staging")).etag != before[0]

    database.run(work)


def test_s7_a_description_shows_through_latest_at_once(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        await _save(db, ref, "one")
        async with db.transaction(ref.project_id) as session:
            before = await resolve(session, ref)
            await describe_artifact(session, ref, ANNA, description="Greets people.")
            after = await resolve(session, ref)
            assert after.artifact.description == "Greets people."
            assert after.etag != before.etag and after.version.id == before.version.id

    database.run(work)


def test_s7b_a_label_made_anew_never_has_an_etag_of_before(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> list[str]:
        await _save(db, ref, "one")
        etags = []
        for _ in range(3):
            async with db.transaction(ref.project_id) as session:
                await move_label(session, ref, LabelMove("staging", 1, None), ANNA)
            async with db.transaction(ref.project_id) as session:
                etags.append((await resolve(session, ref, "staging")).etag)
                await delete_label(session, ref, "staging", ANNA)
            async with db.transaction(ref.project_id) as session:
                with pytest.raises(NotFoundError):
                    await resolve(session, ref, "staging")
        return etags

    assert len(set(database.run(work))) == 3


def test_s5_what_is_archived_does_not_resolve_until_it_is_restored(
    database: MigratedDatabase,
) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        for words in ("one", "two"):
            await _save(db, ref, words)
        async with db.transaction(ref.project_id) as session:
            await delete_version(session, ref, 2, ANNA)
            assert (await resolve(session, ref)).version.number == 1
            with pytest.raises(NotFoundError, match="no version 2.*The nearest: 1"):
                await resolve(session, ref, 2)
            await restore_version(session, ref, 2, ANNA)
            assert (await resolve(session, ref, 2)).version.number == 2
            await delete_artifact(session, ref, ANNA)
            for at in ("latest", 1, "staging"):
                with pytest.raises(NotFoundError, match="was deleted.*Restore it"):
                    await resolve(session, ref, at)
            with pytest.raises(ConflictError, match="was deleted"):
                await create_version(session, ref, Draft(*encode_content("x"), ANNA))
            await restore_artifact(session, ref, ANNA)
            assert (await resolve(session, ref)).version.number == 2

    database.run(work)


def test_misses_name_the_nearest_kind_name_version_and_label(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        for words in ("one", "two", "three"):
            await _save(db, ref, words)
        async with db.transaction(ref.project_id) as session:
            await move_label(session, ref, LabelMove("staging", 1, None), ANNA)
        cases: list[tuple[ArtifactRef, str | int, str]] = [
            (ref, "stagging", "has no label 'stagging'. Its labels: staging;.*mean 'staging'"),
            (ref, 9, "no version 9 of prompt 'greeting'; the newest was 3. The nearest: 3."),
            (ref._replace(name="greting"), 1, "no prompt named 'greting'. Did you mean 'greeting'"),
            (ref._replace(name="zzz"), 1, "no prompt named 'zzz'. There are: greeting."),
            (ref._replace(kind="promt"), 1, "no artifact of kind 'promt'. Did you mean 'prompt'"),
            (ref._replace(kind="zzz"), 1, "no artifact of kind 'zzz'. There are: prompt."),
            (ref._replace(name="a\x00b"), 1, "no prompt named"),
            (ref._replace(kind="\x00"), 1, "no '\\\\x00' named|no \x00 named"),
            (ref, "\x00", "has no label"),
        ]
        for wrong, at, words in cases:
            async with db.transaction(ref.project_id) as session:
                with pytest.raises(NotFoundError, match=words):
                    await resolve(session, wrong, at)

    database.run(work)


def test_names_of_other_projects_are_never_offered(database: MigratedDatabase) -> None:
    database.query("insert into project (id, name) values (gen_random_uuid(), 'theirs')")
    database.query(
        "insert into artifact (id, project_id, kind, name) "
        "select gen_random_uuid(), id, 'prompt', 'their-secret' from project where name = 'theirs'"
    )

    async def work(db: Database) -> None:
        async with db.transaction(database.project_id) as session:
            with pytest.raises(NotFoundError) as caught:
                await resolve(session, _ref(database, "their-secre"))
            assert "their-secret" not in str(caught.value)
            with pytest.raises(NotFoundError, match="no version .* in this project"):
                stranger = Draft(*encode_content("x"), ANNA, parents=[database.project_id])
                await create_version(session, _ref(database), stranger)

    database.run(work)
