"""Labels: who may move them, and that writers who meet on one agent never block each other."""

from __future__ import annotations

import asyncio

import pytest

from instar.store.agents import save_agent
from instar.store.artifacts import ArtifactRef, Draft, create_version, encode_content, resolve
from instar.store.audit import Author, first_broken_link
from instar.store.labels import (
    ANY,
    LabelMove,
    MoveRole,
    delete_label,
    list_labels,
    move_label,
    protect_label,
)
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.candidates import Candidate, Component, Harness
from instar_core.errors import InvalidContent, NotFoundError, PermissionDenied

pytestmark = pytest.mark.postgres

ANNA = Author("person", "anna")
ROLES = ("viewer", "operator", "approver", "admin")


async def _versions(db: Database, ref: ArtifactRef, count: int) -> None:
    for number in range(count):
        async with db.transaction(ref.project_id) as session:
            draft = Draft(*encode_content(f"text {number}"), ANNA)
            await create_version(session, ref, draft)


@pytest.mark.parametrize("least", ["operator", "approver", "admin"])
def test_a_label_moves_for_its_role_and_those_above(
    database: MigratedDatabase, least: MoveRole
) -> None:
    ref = ArtifactRef(database.project_id, "prompt", "greeting")

    async def work(db: Database) -> None:
        await _versions(db, ref, 2)
        async with db.transaction(ref.project_id) as session:
            await move_label(session, ref, LabelMove("staging", 1, None), ANNA)
            before = (await resolve(session, ref, "staging")).etag
            await protect_label(session, ref, "staging", ANNA, role=least)
            # Who may move it is part of what is shown of it.
            assert (await resolve(session, ref, "staging")).etag != before
            row = (await list_labels(session, ref))[0]
            assert (row.move_role, row.protected) == (least, least != "operator")
        for role in ROLES:
            move = LabelMove("staging", 2, ANY, role=role)
            async with db.transaction(ref.project_id) as session:
                if ROLES.index(role) >= ROLES.index(least):
                    await move_label(session, ref, move, ANNA)
                    continue
                with pytest.raises(PermissionDenied, match=f"the role '{least}' and those above"):
                    await move_label(session, ref, move, ANNA)
                with pytest.raises(PermissionDenied):
                    await delete_label(session, ref, "staging", ANNA, role=role)
        async with db.transaction(ref.project_id) as session:
            await delete_label(session, ref, "staging", ANNA, role=least)

    database.run(work)


def test_production_starts_as_the_admins(database: MigratedDatabase) -> None:
    ref = ArtifactRef(database.project_id, "prompt", "greeting")

    async def work(db: Database) -> None:
        await _versions(db, ref, 2)
        async with db.transaction(ref.project_id) as session:
            await move_label(session, ref, LabelMove("production", 1, None), ANNA)
            with pytest.raises(PermissionDenied):
                await move_label(session, ref, LabelMove("production", 2, 1, role="approver"), ANNA)
            # A promotion, and an admin, may.
            await move_label(session, ref, LabelMove("production", 2, 1, unlock=True), ANNA)
            await move_label(session, ref, LabelMove("production", 1, 2, role="admin"), ANNA)
            with pytest.raises(InvalidContent, match="'viewer' cannot be the role"):
                await protect_label(session, ref, "production", ANNA, role="viewer")  # type: ignore[arg-type]
            with pytest.raises(NotFoundError, match="Its labels: production.*mean 'production'"):
                await protect_label(session, ref, "prodction", ANNA, role="operator")

    database.run(work)


def test_what_an_admin_took_out_of_production_an_operator_does_not_put_back(
    database: MigratedDatabase,
) -> None:
    ref = ArtifactRef(database.project_id, "prompt", "greeting")

    async def work(db: Database) -> None:
        await _versions(db, ref, 2)
        async with db.transaction(ref.project_id) as session:
            await move_label(session, ref, LabelMove("production", 1, None), ANNA)
            await delete_label(session, ref, "production", ANNA, role="admin")
            for role in ("operator", "approver"):
                with pytest.raises(PermissionDenied, match="was removed; whoever may move it"):
                    await move_label(session, ref, LabelMove("production", 2, ANY, role=role), ANNA)
            assert await list_labels(session, ref) == []
            # Other labels come and go; a promotion and an admin put this one back.
            await move_label(session, ref, LabelMove("staging", 1, None), ANNA)
            await delete_label(session, ref, "staging", ANNA)
            await move_label(session, ref, LabelMove("staging", 2, None), ANNA)
            await move_label(session, ref, LabelMove("production", 2, None, unlock=True), ANNA)
            await delete_label(session, ref, "production", ANNA, role="admin")
            await move_label(session, ref, LabelMove("production", 2, None, role="admin"), ANNA)

    database.run(work)


def _agent(words: str) -> Candidate:
    return Candidate(
        components={
            name: Component(kind="instructions", content=f"{name} {words}")
            for name in ("first", "second")
        },
        harness=Harness(model="scripted/x"),
    )


def test_savers_and_movers_of_one_agent_never_wait_in_a_circle(
    database: MigratedDatabase,
) -> None:
    project = database.project_id
    agent = ArtifactRef(project, "agent", "desk")

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            await save_agent(session, project, "desk", _agent("at first"), author=ANNA)
            await move_label(session, agent, LabelMove("staging", 1, None), ANNA)

        async def save(turn: int) -> None:
            async with db.transaction(project) as session:
                await save_agent(session, project, "desk", _agent(f"turn {turn}"), author=ANNA)

        async def move() -> None:
            async with db.transaction(project) as session:
                await move_label(session, agent, LabelMove("staging", 1, ANY), ANNA)

        async def part(turn: int) -> None:
            kind = (await _kinds(db, project))[0]
            async with db.transaction(project) as session:
                # The same content as a saver of the agent stores at this moment.
                ref = ArtifactRef(project, kind, "desk/second")
                draft = Draft(*encode_content(f"second turn {turn}"), ANNA)
                await create_version(session, ref, draft)

        # A circle would be a deadlock, which transaction() raises as an error.
        await asyncio.gather(*(one for i in range(8) for one in (save(i), move(), part(i))))
        async with db.transaction(project) as session:
            assert (await resolve(session, agent)).version.number == 9
            assert await first_broken_link(session, project) is None

    database.run(work)


async def _kinds(db: Database, project: str) -> list[str]:
    async with db.transaction(project) as session:
        for kind in ("prompt", "instructions"):
            try:
                await resolve(session, ArtifactRef(project, kind, "desk/second"))
            except NotFoundError:
                continue
            return [kind]
    raise AssertionError("the component is under neither kind")
