"""Artifacts and versions: numbers without gaps, references, soft deletes, pages."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import (
    ArtifactRef,
    Draft,
    create_version,
    describe_artifact,
    encode_content,
    list_artifacts,
    list_versions,
    read_content,
    read_parents,
    resolve,
)
from instar.store.audit import SYSTEM, Author, first_broken_link
from instar.store.labels import (
    LabelMove,
    delete_artifact,
    delete_label,
    delete_version,
    move_label,
    restore_artifact,
    restore_version,
)
from instar.store.pages import read_page
from instar.store.session import Database
from instar.store.tables import ArtifactRow
from instar.store.testing import MigratedDatabase
from instar_core.base import JsonValue
from instar_core.errors import ConflictError, InvalidContent, NotFoundError, StoreError, UserError

pytestmark = pytest.mark.postgres

ANNA = Author("person", "anna")


def _ref(database: MigratedDatabase, name: str = "greeting") -> ArtifactRef:
    return ArtifactRef(database.project_id, "prompt", name)


def _draft(content: JsonValue = "Hello.", author: Author = ANNA) -> Draft:
    return Draft(*encode_content(content), author)


async def _save(db: Database, ref: ArtifactRef, content: JsonValue = "Hello.") -> int:
    async with db.transaction(ref.project_id) as session:
        return (await create_version(session, ref, _draft(content))).number


async def _move(db: Database, ref: ArtifactRef, move: LabelMove) -> int:
    async with db.transaction(ref.project_id) as session:
        return (await move_label(session, ref, move, ANNA)).number


def test_s9_twenty_parallel_saves_give_twenty_consecutive_versions(
    database: MigratedDatabase,
) -> None:
    ref = _ref(database)

    async def work(db: Database) -> list[int]:
        return list(await asyncio.gather(*(_save(db, ref, f"text {i}") for i in range(20))))

    assert sorted(database.run(work)) == list(range(1, 21))
    assert database.query("select last_version from artifact") == [(20,)]
    assert database.query("select count(*), count(distinct number) from version") == [(20, 20)]


def test_a_save_that_is_rolled_back_leaves_no_gap(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> int:
        await _save(db, ref, "one")
        with pytest.raises(RuntimeError):
            async with db.transaction(ref.project_id) as session:
                await create_version(session, ref, _draft("lost"))
                raise RuntimeError("the caller fails after saving")
        return await _save(db, ref, "two")

    assert database.run(work) == 2


def test_the_same_content_twice_is_two_versions_and_one_blob(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        assert await _save(db, ref, "same") == 1
        assert await _save(db, ref, "same") == 2
        async with db.transaction(ref.project_id) as session:
            reused = await create_version(session, ref, _draft("same"), reuse=True)
            assert reused.number == 2

    database.run(work)
    assert database.query("select count(*) from blob") == [(1,)]


@pytest.mark.parametrize(
    "content",
    [
        "plain",
        "",
        "two\r\nlines \u00e9\U0001f98b\u200d and a tab\t and \x01",
        " leading and trailing ",
        {"b": [1, 2.5, None, True], "a": {"\u00fc": "x\x01"}},
        ["1", 1],
    ],
)
def test_s25_stored_content_equals_what_was_sent(
    database: MigratedDatabase, content: JsonValue
) -> None:
    ref = _ref(database)

    async def work(db: Database) -> JsonValue:
        async with db.transaction(ref.project_id) as session:
            version = await create_version(session, ref, _draft(content))
            assert version.blob_digest == _draft(content).digest
        async with db.transaction(ref.project_id) as session:
            return await read_content(session, (await resolve(session, ref)).version)

    assert database.run(work) == content


def test_damaged_content_is_noticed(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def read(db: Database) -> JsonValue:
        async with db.transaction(ref.project_id) as session:
            return await read_content(session, (await resolve(session, ref)).version)

    database.run(lambda db: _save(db, ref))
    database.query("update blob set content = 'Hallo.'")
    with pytest.raises(StoreError, match="damaged or missing"):
        database.run(read)


def test_content_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be stored"):
        encode_content("\ud800")
    with pytest.raises(UserError, match="cannot be stored"):
        encode_content({"a": float("nan")})
    nuls: list[JsonValue] = ["a\x00b", {"a": ["\x00"]}, {"\x00": 1}]
    for value in nuls:
        with pytest.raises(InvalidContent, match="NUL character"):
            encode_content(value)


@pytest.mark.parametrize("name", ["", "a b", "a@b", "a\nb", "x" * 256])
def test_names_that_cannot_be_are_refused(database: MigratedDatabase, name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of a prompt"):
        database.run(lambda db: _save(db, _ref(database, name)))


def test_references_are_numbers_labels_or_latest(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        for text in ("one", "two", "three"):
            await _save(db, ref, text)
        await _move(db, ref, LabelMove("staging", 2, None))
        async with db.transaction(ref.project_id) as session:
            for at, number in ((1, 1), ("3", 3), ("staging", 2), ("latest", 3), ("", 3)):
                found = await resolve(session, ref, at)
                assert found.version.number == number
            with pytest.raises(NotFoundError, match="no label 'prod'.*Its labels: staging"):
                await resolve(session, ref, "prod")
            with pytest.raises(NotFoundError, match="no version 4 of prompt 'greeting'"):
                await resolve(session, ref, 4)
            with pytest.raises(NotFoundError, match="no version 99999999999999999999"):
                await resolve(session, ref, "99999999999999999999")
            with pytest.raises(NotFoundError, match="no prompt named 'other'"):
                await resolve(session, _ref(database, "other"))

    database.run(work)


def test_s1_s7b_resolving_after_a_move_gives_the_new_version_and_etag(
    database: MigratedDatabase,
) -> None:
    ref = _ref(database)

    async def etag(session: AsyncSession, at: str) -> tuple[int, str]:
        found = await resolve(session, ref, at)
        return found.version.number, found.etag

    async def work(db: Database) -> None:
        await _save(db, ref, "one")
        await _save(db, ref, "two")
        await _move(db, ref, LabelMove("production", 1, None))
        seen = []
        async with db.transaction(ref.project_id) as reader:
            seen.append(await etag(reader, "production"))
            await _move(db, ref, LabelMove("production", 2, 1, unlock=True))
            # The same open session sees the move at once: nothing is cached.
            seen.append(await etag(reader, "production"))
            await _move(db, ref, LabelMove("production", 1, 2, unlock=True))
            seen.append(await etag(reader, "production"))
        async with db.transaction(ref.project_id) as session:
            await delete_label(session, ref, "production", ANNA, unlock=True)
        # It was protected: who puts it back must have been able to move it.
        await _move(db, ref, LabelMove("production", 1, None, role="admin"))
        async with db.transaction(ref.project_id) as session:
            seen.append(await etag(session, "production"))
        assert [number for number, _ in seen] == [1, 2, 1, 1]
        assert len({tag for _, tag in seen}) == 4

    database.run(work)


def test_s7_a_change_of_metadata_changes_the_etag(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        await _save(db, ref)
        async with db.transaction(ref.project_id) as session:
            before = (await resolve(session, ref)).etag
            await describe_artifact(session, ref, ANNA, tags=["friendly"])
        async with db.transaction(ref.project_id) as session:
            after = await resolve(session, ref)
            assert after.etag != before and after.artifact.tags == ["friendly"]

    database.run(work)


def test_s7c_a_run_keeps_the_version_that_it_resolved_at_its_start(
    database: MigratedDatabase,
) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        await _save(db, ref, "one")
        await _save(db, ref, "two")
        await _move(db, ref, LabelMove("production", 1, None))
        async with db.transaction(ref.project_id) as session:
            pinned = (await resolve(session, ref, "production")).version
        await _move(db, ref, LabelMove("production", 2, 1, unlock=True))
        async with db.transaction(ref.project_id) as session:
            assert await read_content(session, pinned) == "one"
            now = (await resolve(session, ref, "production")).version
            assert await read_content(session, now) == "two"

    database.run(work)


def test_s8_descriptions_are_edited_without_a_version_and_audited(
    database: MigratedDatabase,
) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        await _save(db, ref)
        for text in ("Greets peple.", "Greets people."):
            async with db.transaction(ref.project_id) as session:
                await describe_artifact(session, ref, ANNA, description=text)
        async with db.transaction(ref.project_id) as session:
            found = await resolve(session, ref)
            assert found.artifact.description == "Greets people."
            assert found.version.number == 1
            assert await first_broken_link(session, ref.project_id) is None

    database.run(work)
    rows = database.query(
        "select actor, action, details->'description' from audit_event order by seq"
    )
    assert rows == [
        ("anna", "artifact.save", None),
        ("anna", "artifact.describe", ["", "Greets peple."]),
        ("anna", "artifact.describe", ["Greets peple.", "Greets people."]),
    ]


def test_s11_s5_deletes_are_soft_scoped_and_refused_while_labelled(
    database: MigratedDatabase,
) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        for text in ("one", "two"):
            await _save(db, ref, text)
        await _move(db, ref, LabelMove("staging", 2, None))
        async with db.transaction(ref.project_id) as session:
            with pytest.raises(ConflictError, match="is what the label 'staging' points to"):
                await delete_version(session, ref, 2, ANNA)
            with pytest.raises(ConflictError, match="Move or remove first: staging"):
                await delete_artifact(session, ref, ANNA)
            await delete_version(session, ref, 1, ANNA)
        async with db.transaction(ref.project_id) as session:
            with pytest.raises(NotFoundError):
                await resolve(session, ref, 1)
            with pytest.raises(NotFoundError, match="was deleted"):
                await move_label(session, ref, LabelMove("staging", 1, 2), ANNA)
            assert [v.number for v in await list_versions(session, ref)] == [2]
            await restore_version(session, ref, 1, ANNA)
            assert (await resolve(session, ref, 1)).version.number == 1
            await delete_label(session, ref, "staging", ANNA)
            assert await delete_artifact(session, ref, ANNA) == 2
        async with db.transaction(ref.project_id) as session:
            with pytest.raises(NotFoundError, match="it was deleted"):
                await resolve(session, ref)
            with pytest.raises(ConflictError, match="was deleted.*Restore it"):
                await create_version(session, ref, _draft())
            await restore_artifact(session, ref, ANNA)
            assert [v.number for v in await list_versions(session, ref)] == [2, 1]

    database.run(work)


def test_a_number_is_never_given_twice_even_after_a_delete(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> int:
        await _save(db, ref, "one")
        await _save(db, ref, "two")
        async with db.transaction(ref.project_id) as session:
            await delete_version(session, ref, 2, ANNA)
        return await _save(db, ref, "three")

    assert database.run(work) == 3


def test_s107_deletes_need_project_kind_and_name(database: MigratedDatabase) -> None:
    ref = _ref(database)
    same_name = ref._replace(kind="skill")

    async def work(db: Database) -> None:
        await _save(db, ref)
        await _save(db, same_name)
        async with db.transaction(ref.project_id) as session:
            assert await delete_artifact(session, ref, ANNA) == 1
        async with db.transaction(ref.project_id) as session:
            assert (await resolve(session, same_name)).version.number == 1

    database.run(work)


def test_versions_know_their_parents_author_and_reason(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        async with db.transaction(ref.project_id) as session:
            opened = replace(_draft("one"), job_access="overlay")
            first = await create_version(session, ref, opened)
            content, media_type = encode_content("two")
            draft = Draft(
                content,
                media_type,
                Author("run", "r1"),
                reason="shorter",
                evidence={"rollouts": ["x"], "z": 1, "a": 2},
                parents=[first.id, first.id],
            )
            second = await create_version(session, ref, draft)
        async with db.transaction(ref.project_id) as session:
            assert await read_parents(session, second.id) == [first.id]
            found = (await resolve(session, ref, 2)).version
            assert (found.author_kind, found.author, found.reason) == ("run", "r1", "shorter")
            assert list(found.evidence) == ["rollouts", "z", "a"]
            # A job's version of a person's artifact lies on the person's.
            assert (found.origin, found.base_id) == ("overlay", first.id)

    database.run(work)


def test_pages_follow_each_other_without_gap_or_repeat(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> list[str]:
        async with db.transaction(project) as session:
            for i in range(7):
                await create_version(session, _ref(database, f"p{i}"), Draft(b"x", "x", SYSTEM))
        seen: list[str] = []
        cursor = None
        async with db.transaction(project) as session:
            while True:
                page = await list_artifacts(session, project, "prompt", limit=3, cursor=cursor)
                seen.extend(row.name for row in page.items)
                cursor = page.next_cursor
                if cursor is None:
                    return seen
                # Something new on top does not shift the pages below.
                await create_version(
                    session, _ref(database, f"n{len(seen)}"), Draft(b"x", "x", SYSTEM)
                )

    assert database.run(work) == [f"p{i}" for i in range(6, -1, -1)]


@pytest.mark.parametrize("cursor", ["x", "!!", "MjAyNg", "\u00e9"])
def test_a_cursor_that_is_not_ours_is_refused(database: MigratedDatabase, cursor: str) -> None:
    async def work(db: Database) -> None:
        async with db.transaction(database.project_id) as session:
            await read_page(session, select(ArtifactRow), ArtifactRow, limit=5, cursor=cursor)

    with pytest.raises(UserError, match="is not one of ours"):
        database.run(work)


def test_page_limits_are_bounded(database: MigratedDatabase) -> None:
    async def work(db: Database) -> None:
        async with db.transaction(database.project_id) as session:
            await list_artifacts(session, database.project_id, limit=0)

    with pytest.raises(UserError, match="limit is 0; it must be 1 to 200"):
        database.run(work)
