"""Restoring the state before a run: one call, everything the run touched, and back again."""

from __future__ import annotations

from typing import Any

import pytest

from instar.evolution import service
from instar.registry.behaviour import compare_behaviour
from instar.registry.lineage import read_lineage
from instar.registry.overlay import rebase_overlay
from instar.registry.restore import restore_before_run, undo_restore
from instar.store.agents import load_candidate, read_agent, save_agent
from instar.store.artifacts import ArtifactRef, resolve
from instar.store.audit import Author, first_broken_link
from instar.store.labels import LabelMove, list_label_events, move_label
from instar.store.session import Database
from instar_core.base import new_id
from instar_core.candidates import Candidate
from instar_core.errors import ConflictError, NotFoundError, PermissionDenied

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
ANNA = Author("person", "user:anna")

_STATE = (
    "select 'version', a.kind || '/' || a.name || '@' || v.number, (v.deleted_at is not null)::text"
    " from version v join artifact a on a.id = v.artifact_id"
    " union all select 'artifact', kind || '/' || name, (deleted_at is not null)::text"
    " from artifact"
    " union all select 'label', artifact_id || name, number::text from label"
    " union all select 'proposal', id::text, state from proposal"
    " union all select 'promotion', id::text, state from promotion order by 1, 2"
)


def test_s16_one_call_restores_the_state_before_a_run_and_another_takes_that_back(
    database: Any, nights: Any
) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        await nights.register(db)
        before = database.query(_STATE)
        status = await nights.night(db, promotion="auto")
        assert status.promotion_id, status
        after = database.query(_STATE)
        ref = ArtifactRef(project, "agent", "desk")
        async with db.transaction(project) as session:
            events = await list_label_events(session, ref, "production")
            assert [one.run_id for one in events] == [None, status.id]
        async with db.transaction(project) as session:
            told = await restore_before_run(session, project, status.id, ANNA, dry_run=True)
        assert told.dry_run and told.changed
        assert database.query(_STATE) == after
        async with db.transaction(project) as session:
            done = await restore_before_run(session, project, status.id, ANNA)
        assert done == told.model_copy(update={"dry_run": False})
        (label,) = done.labels
        assert (label.label, label.left, label.to, label.state) == ("production", 2, 1, "restored")
        assert [one.after for one in done.promotions] == ["rolled_back"]
        assert [one.state for one in done.versions] == ["archived"] * len(done.versions)
        assert ("agent", "desk", 2) in {(one.kind, one.name, one.number) for one in done.versions}
        # What was there before the night is as it was; what the night made is hidden, not gone.
        now = {(kind, name): state for kind, name, state in database.query(_STATE)}
        for kind, name, state in before:
            assert now[kind, name] == state
        new = {key: now[key] for key in now if key not in {(k, n) for k, n, _ in before}}
        assert {state for (kind, _), state in new.items() if kind in ("version", "artifact")} == {
            "true"
        }
        async with db.transaction(project) as session:
            assert (await read_agent(session, project, "desk", "production")).version == 1
            assert (await read_agent(session, project, "desk")).version == 1
            # Once more changes nothing.
            again = await restore_before_run(session, project, status.id, ANNA)
        assert not again.changed
        assert [one.state for one in again.labels] == ["unchanged"]
        async with db.transaction(project) as session:
            back = await undo_restore(session, project, status.id, ANNA)
        assert [(one.to, one.state) for one in back.labels] == [(2, "restored")]
        assert database.query(_STATE) == after
        with pytest.raises(ConflictError, match="nothing to take back"):
            async with db.transaction(project) as session:
                await undo_restore(session, project, status.id, ANNA)
        async with db.transaction(project) as session:
            third = await restore_before_run(session, project, status.id, ANNA)
            assert [(one.to, one.state) for one in third.labels] == [(1, "restored")]
            assert await first_broken_link(session, project) is None

    database.run(work)
    actions = [row[0] for row in database.query("select action from audit_event order by seq")]
    assert actions.count("evolution.restore") == 2
    assert actions.count("evolution.restore_undo") == 1


def test_s16_what_somebody_did_since_stays_and_is_told(database: Any, nights: Any) -> None:
    project = database.project_id
    ref = ArtifactRef(project, "agent", "desk")

    async def work(db: Database) -> None:
        await nights.register(db)
        status = await nights.night(db)
        assert status.state == "succeeded" and "waits for a person" in status.reason
        promotion = await service.approve_proposal(db, project, status.proposal_id, by="anna")
        async with db.transaction(project) as session:
            # A person's new base: the learned change is carried over; then the label moves on.
            mine = await load_candidate(session, project, "desk", 1)
            harness = mine.harness.model_copy(update={"final_after_tool": True})
            edited = Candidate(components=mine.components, harness=harness)
            saved = await save_agent(session, project, "desk", edited, author=ANNA)
            assert saved.version == 3
            assert (await rebase_overlay(session, ref, saved.id)).version == 4
            move = LabelMove("production", 3, 2, "mine", role="admin")
            await move_label(session, ref, move, ANNA)
        async with db.transaction(project) as session:
            told = await restore_before_run(session, project, status.id, ANNA)
        (label,) = told.labels
        assert (label.state, label.now, label.by) == ("moved_since", 3, "person:user:anna")
        assert told.promotions == ()
        assert ("agent", "desk", 4, "rebase") in {
            (one.kind, one.name, one.number, one.origin) for one in told.built_on
        }
        # Components that the rebased version pins stay; the run's agent version goes.
        states = {(one.kind, one.number): one for one in told.versions}
        assert states["agent", 2].state == "archived"
        parts = [one for one in told.versions if one.kind != "agent"]
        assert {one.state for one in parts} == {"kept"}
        assert all("pins it" in one.why for one in parts)
        async with db.transaction(project) as session:
            assert (await read_agent(session, project, "desk", "production")).version == 3
            assert (await load_candidate(session, project, "desk", 4)).harness == harness
            forced = await restore_before_run(session, project, status.id, ANNA, force=True)
            assert [(one.state, one.to) for one in forced.labels] == [("restored", 1)]
            assert (await read_agent(session, project, "desk", "production")).version == 1
        assert (await service.read_promotion(db, project, promotion.id)).state == "rolled_back"

    database.run(work)


def test_a_waiting_proposal_is_withdrawn_and_its_versions_are_archived(
    database: Any, nights: Any
) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        await nights.register(db)
        status = await nights.night(db)
        async with db.transaction(project) as session:
            done = await restore_before_run(session, project, status.id, ANNA)
        assert done.labels == ()
        assert [(one.before, one.after) for one in done.proposals] == [("waiting", "withdrawn")]
        proposal = await service.read_proposal(db, project, status.proposal_id)
        assert proposal.state == "withdrawn"
        with pytest.raises(ConflictError, match="'withdrawn'"):
            await service.approve_proposal(db, project, status.proposal_id, by="anna")

    database.run(work)


def test_s107_a_restore_knows_its_project_and_tells_how_much_beforehand(
    database: Any, nights: Any
) -> None:
    project = database.project_id
    other = new_id()
    database.query("insert into project (id, name) values (%s, 'other')", other)

    async def work(db: Database) -> None:
        await nights.register(db)
        status = await nights.night(db)
        with pytest.raises(NotFoundError):
            async with db.transaction(other) as session:
                await restore_before_run(session, other, status.id, ANNA)
        with pytest.raises(PermissionDenied, match="a job may not"):
            async with db.transaction(project) as session:
                await restore_before_run(session, project, status.id, Author("run", status.id))
        async with db.transaction(project) as session:
            told = await restore_before_run(session, project, status.id, ANNA, dry_run=True)
            assert sum(one.state == "archived" for one in told.versions) == len(told.versions) > 0
            assert (await read_agent(session, project, "desk")).version == 2

    database.run(work)


def test_a_night_shows_in_lineage_and_behaviour(database: Any, nights: Any) -> None:
    project = database.project_id
    ref = ArtifactRef(project, "agent", "desk")

    async def work(db: Database) -> None:
        await nights.register(db)
        status = await nights.night(db, promotion="auto")
        async with db.transaction(project) as session:
            graph = await read_lineage(session, ref, "production", parts=True)
            by_id = {one.id: one for one in graph.nodes}
            start = by_id[graph.start]
            assert (start.number, start.origin, start.run_id) == (2, "overlay", status.id)
            assert start.score is not None and start.rollouts > 0
            assert start.score.lower <= start.score.mean <= start.score.upper
            assert start.score.split == "validation" and start.score.tasks > 1
            kinds = {
                (edge.kind, by_id[edge.parent].number)
                for edge in graph.edges
                if edge.child == graph.start and edge.parent in by_id
            }
            assert {("parent", 1), ("overlay-base", 1)} <= kinds
            assert any(edge.kind == "component" for edge in graph.edges)
            # What it was learned from, and what its rollouts took.
            learned_from = {
                (edge.child, edge.parent)
                for edge in graph.edges
                if edge.kind == "derived-from-rollout"
            }
            recorded = database.query(
                "select cast(version_id as text), cast(rollout_id as text) from version_rollout"
            )
            assert learned_from == set(recorded) and learned_from
            assert start.cost_usd is not None
            incumbent = (await resolve(session, ref, 1)).version
            found = await compare_behaviour(
                session, project, incumbent.subject_digest, start.candidate
            )
            assert found.shared > 1 and found.difference is not None and found.difference > 0
            told = [one.difference for one in found.tasks if one.difference is not None]
            assert told == sorted(told)
            sealed = {
                row[0] for row in database.query("select task_id from task where split = 'sealed'")
            }
            assert sealed and not sealed & {one.task_id for one in found.tasks}

    database.run(work)
