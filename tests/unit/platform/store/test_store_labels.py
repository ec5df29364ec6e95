"""Labels: which names they may have, and moves by compare-and-swap."""

from __future__ import annotations

import asyncio

import pytest

from instar.store.artifacts import (
    ArtifactRef,
    Draft,
    create_version,
    encode_content,
)
from instar.store.audit import Author
from instar.store.labels import (
    ANY,
    LabelMove,
    delete_label,
    list_label_events,
    list_labels,
    move_label,
    protect_label,
)
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.base import JsonValue
from instar_core.errors import ConflictError, NotFoundError, PermissionDenied, UserError

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


@pytest.mark.parametrize("label", ["3", "007", "\u0663"])
def test_s3_labels_of_digits_alone_are_refused(database: MigratedDatabase, label: str) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        await _save(db, ref)
        await _move(db, ref, LabelMove(label, 1, None))

    with pytest.raises(UserError, match=f"Name it 'v{label}'"):
        database.run(work)


@pytest.mark.parametrize("label", ["latest", "Prod", "a b", "", "-x", "x" * 64])
def test_odd_labels_are_refused(database: MigratedDatabase, label: str) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        await _save(db, ref)
        await _move(db, ref, LabelMove(label, 1, ANY))

    with pytest.raises(UserError, match="cannot be a label"):
        database.run(work)


def test_labels_move_only_from_where_they_are_believed_to_be(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        for text in ("one", "two"):
            await _save(db, ref, text)
        with pytest.raises(ConflictError, match="is absent, not at version 1 as expected"):
            await _move(db, ref, LabelMove("staging", 1, 1))
        await _move(db, ref, LabelMove("staging", 1, None, "first"))
        with pytest.raises(ConflictError, match="is at version 1, not absent as expected"):
            await _move(db, ref, LabelMove("staging", 2, None))
        with pytest.raises(NotFoundError, match="no version 3"):
            await _move(db, ref, LabelMove("staging", 3, 1))
        await _move(db, ref, LabelMove("staging", 2, 1, "better"))
        async with db.transaction(ref.project_id) as session:
            events = await list_label_events(session, ref, "staging")
            told = [(e.from_number, e.to_number, e.actor, e.cause) for e in events]
            assert told == [(None, 1, "anna", "first"), (1, 2, "anna", "better")]

    database.run(work)


def test_of_many_movers_with_one_belief_exactly_one_wins(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> list[int | None]:
        for i in range(11):
            await _save(db, ref, f"text {i}")
        await _move(db, ref, LabelMove("staging", 1, None))

        async def attempt(number: int) -> int | None:
            try:
                return await _move(db, ref, LabelMove("staging", number, 1))
            except ConflictError:
                return None

        return list(await asyncio.gather(*(attempt(number) for number in range(2, 12))))

    winners = [number for number in database.run(work) if number is not None]
    assert len(winners) == 1
    assert database.query("select number, epoch from label") == [(winners[0], 2)]
    assert database.query("select count(*) from label_event") == [(2,)]


def test_of_many_creators_of_a_label_exactly_one_wins(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> int:
        await _save(db, ref)

        async def attempt() -> int:
            try:
                return await _move(db, ref, LabelMove("staging", 1, None))
            except ConflictError:
                return 0

        return sum(await asyncio.gather(*(attempt() for _ in range(8))))

    assert database.run(work) == 1


def test_protected_labels_move_only_when_unlocked(database: MigratedDatabase) -> None:
    ref = _ref(database)

    async def work(db: Database) -> None:
        for text in ("one", "two"):
            await _save(db, ref, text)
        await _move(db, ref, LabelMove("production", 1, None))
        with pytest.raises(PermissionDenied, match="'production'.*is protected"):
            await _move(db, ref, LabelMove("production", 2, 1))
        async with db.transaction(ref.project_id) as session:
            with pytest.raises(PermissionDenied):
                await delete_label(session, ref, "production", ANNA)
        await _move(db, ref, LabelMove("production", 2, 1, unlock=True))
        async with db.transaction(ref.project_id) as session:
            await protect_label(session, ref, "production", ANNA, role="operator")
        await _move(db, ref, LabelMove("production", 1, 2))
        async with db.transaction(ref.project_id) as session:
            assert [(x.name, x.number, x.protected) for x in await list_labels(session, ref)] == [
                ("production", 1, False)
            ]

    database.run(work)
