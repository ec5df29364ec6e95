"""Restores of one run that add up: taken back together, nothing stays behind."""

from __future__ import annotations

from typing import Any

import pytest

from instar.evolution import service
from instar.registry.restore import restore_before_run, undo_restore
from instar.store.agents import read_agent, save_agent
from instar.store.artifacts import ArtifactRef, read_version, resolve
from instar.store.audit import Author
from instar.store.labels import LabelMove, move_label
from instar.store.session import Database
from instar_core.candidates import Candidate, Component, Harness

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
ANNA = Author("person", "user:anna")


def test_s16_what_two_restores_did_is_taken_back_together(database: Any, nights: Any) -> None:
    project = database.project_id
    ref = ArtifactRef(project, "agent", "desk")

    async def work(db: Database) -> None:
        await nights.register(db)
        status = await nights.night(db, promotion="auto")
        assert status.promotion_id, status
        learned = (await _at(db, ref, 2)).id
        other = Candidate(
            components={"mine": Component(kind="instructions", content="Mine.")},
            harness=Harness(model="scripted/tell"),
        )
        async with db.transaction(project) as session:
            saved = await save_agent(session, project, "desk", other, author=ANNA)
            move = LabelMove("production", saved.version, 2, "mine", role="admin")
            await move_label(session, ref, move, ANNA)
        async with db.transaction(project) as session:
            first = await restore_before_run(session, project, status.id, ANNA)
            assert [one.state for one in first.labels] == ["moved_since"]
            assert ("agent", 2, "archived") in {
                (one.kind, one.number, one.state) for one in first.versions
            }
        async with db.transaction(project) as session:
            second = await restore_before_run(session, project, status.id, ANNA, force=True)
            assert [(one.state, one.to) for one in second.labels] == [("restored", 1)]
            assert {one.state for one in second.versions} == {"already"}
        async with db.transaction(project) as session:
            back = await undo_restore(session, project, status.id, ANNA)
        assert [(one.state, one.to) for one in back.labels] == [("restored", saved.version)]
        async with db.transaction(project) as session:
            assert (await read_version(session, learned)).deleted_at is None
            there = await read_agent(session, project, "desk", "production")
            assert there.version == saved.version
        assert database.query(
            "select count(*) from version where deleted_at is not null and run_id = %s", status.id
        ) == [(0,)]
        assert (
            await service.read_promotion(db, project, status.promotion_id)
        ).state != "rolled_back"

    database.run(work)


async def _at(db: Database, ref: ArtifactRef, number: int) -> Any:
    async with db.transaction(ref.project_id) as session:
        return (await resolve(session, ref, number)).version
