"""Overlays: learned changes follow a person's base, and nothing of either is ever lost."""

from __future__ import annotations

from typing import Any

import pytest

from instar.registry.merge import Conflict
from instar.registry.overlay import (
    LearnedNote,
    MergedDraft,
    dismiss_conflict,
    rebase_overlay,
    resolve_conflict,
    save_learned,
)
from instar.registry.verbs import Note, create, update
from instar.store.agents import list_component_versions, load_candidate_version, save_agent
from instar.store.artifacts import (
    ArtifactRef,
    Draft,
    create_version,
    encode_content,
    read_content,
    read_parents,
    read_version,
    resolve,
)
from instar.store.audit import SYSTEM, Author
from instar.store.labels import LabelMove, move_label
from instar.store.overlays import list_conflicts
from instar.store.session import Database
from instar_core.base import JsonValue, new_id
from instar_core.candidates import Candidate, Component, Harness
from instar_core.errors import ConflictError, PermissionDenied

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
ANNA = Author("person", "user:anna")
_TEXT = "Be kind.\nNever guess.\nSign with your name.\n"


def _learned(text: str, run_id: str, base: str) -> Draft:
    return Draft(*encode_content(text), Author("run", run_id), "found", origin="overlay", base=base)


async def _prompt(session: Any, project: str) -> tuple[ArtifactRef, str, str]:
    """A person's prompt that is open to jobs, and a run's overlay on it."""
    ref = ArtifactRef(project, "prompt", "greeting")
    first = await create_version(
        session, ref, Draft(*encode_content(_TEXT), ANNA, job_access="overlay")
    )
    learned = _TEXT.replace("Never guess.", "Never guess a price.")
    overlay = await create_version(session, ref, _learned(learned, new_id(), first.id))
    return ref, first.id, overlay.id


def test_s19_an_update_of_the_base_carries_the_learned_change_over(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            ref, first, overlay = await _prompt(session, project)
            await move_label(session, ref, LabelMove("production", 2, None), SYSTEM)
        async with db.transaction(project) as session:
            saved = await update(session, ref, _TEXT + "Be brief.\n", Note(ANNA, "shorter"))
        assert saved.version.number == 3
        assert saved.notices[0].startswith("The learned change of version 2 was carried over")
        async with db.transaction(project) as session:
            # The person's version is as it was saved; the learned one stays; a third has both.
            assert await read_content(session, saved.version) == _TEXT + "Be brief.\n"
            assert await read_parents(session, saved.version.id) == [first]
            found = (await resolve(session, ref, 4)).version
            content = await read_content(session, found)
            assert content == _TEXT.replace("guess.", "guess a price.") + "Be brief.\n"
            assert (found.origin, found.base_id) == ("rebase", saved.version.id)
            assert sorted(await read_parents(session, found.id)) == sorted(
                [overlay, saved.version.id]
            )
            assert found.evidence == {
                "untested": True,
                "overlay": 2,
                "base": 3,
                "former_base": 1,
            }
            # No label moved.
            assert (await resolve(session, ref, "production")).version.number == 2
            assert (await list_conflicts(session, project)).items == []

    database.run(work)


def test_s19_a_change_of_the_same_place_is_a_conflict_that_waits(database: Any) -> None:
    project = database.project_id
    theirs = _TEXT.replace("Never guess.", "Guess when asked to.")

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            ref, _, overlay = await _prompt(session, project)
            saved = await update(session, ref, theirs, Note(ANNA))
        assert "Settle the conflict" in saved.notices[0]
        async with db.transaction(project) as session:
            assert await read_content(session, (await resolve(session, ref)).version) == theirs
            (row,) = (await list_conflicts(session, project)).items
            assert (row.overlay_id, row.base_id) == (overlay, saved.version.id)
            (conflict,) = [Conflict.model_validate(one) for one in row.conflicts]
            assert (conflict.ours, conflict.line) == ("Never guess a price.\n", 2)
            assert (await read_version(session, overlay)).deleted_at is None
        merged = theirs.replace("asked to.", "asked to, never a price.")
        draft = MergedDraft(ANNA, "both", None, "merge", None, merged)
        async with db.transaction(project) as session:
            version = await resolve_conflict(session, ref, row.id, draft)
            assert (version.number, version.origin) == (4, "merge")
            assert sorted(await read_parents(session, version.id)) == sorted(
                [overlay, saved.version.id]
            )
            assert version.base_id == saved.version.id
            assert (await list_conflicts(session, project)).items == []
        with pytest.raises(ConflictError, match="is settled: merged by person:user:anna"):
            async with db.transaction(project) as session:
                await resolve_conflict(session, ref, row.id, draft)

    database.run(work)


def test_a_later_base_supersedes_an_open_conflict(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            ref, _, _ = await _prompt(session, project)
            await update(session, ref, _TEXT.replace("guess.", "err."), Note(ANNA))
            assert len((await list_conflicts(session, project)).items) == 1
            # The person takes the change back and adds a line: now both fit together.
            await update(session, ref, _TEXT + "Be brief.\n", Note(ANNA))
            assert (await list_conflicts(session, project)).items == []
            every = await list_conflicts(session, project, only_open=False)
            assert [row.resolution for row in every.items] == ["superseded"]
            newest = (await resolve(session, ref)).version
            assert newest.origin == "rebase"
            # Once more: the rebased version is carried on, not the one it came from.
            await update(session, ref, "First.\n" + _TEXT + "Be brief.\n", Note(ANNA))
            again = (await resolve(session, ref)).version
            assert newest.id in await read_parents(session, again.id)
            await update(session, ref, "Something else.\n", Note(ANNA))
            (row,) = (await list_conflicts(session, project)).items
            await dismiss_conflict(session, ref, row.id, ANNA)
            assert (await list_conflicts(session, project)).items == []

    database.run(work)


def test_what_a_person_has_seen_is_not_brought_back(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            ref, _, _ = await _prompt(session, project)
            # The person edits the learned version and takes the learned words out again.
            saved = await update(session, ref, _TEXT + "Be brief.\n", Note(ANNA, parents=(2,)))
            assert saved.notices == ()
            assert (await rebase_overlay(session, ref, saved.version.id)).state == "absorbed"
            assert (await resolve(session, ref)).version.id == saved.version.id

    database.run(work)


def test_a_base_that_holds_the_learned_change_needs_no_rebase(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            ref, _, _ = await _prompt(session, project)
            text = _TEXT.replace("guess.", "guess a price.") + "Be brief.\n"
            saved = await update(session, ref, text, Note(ANNA))
            assert (await rebase_overlay(session, ref, saved.version.id)).state == "contained"
            assert (await resolve(session, ref)).version.number == 3

    database.run(work)


def test_a_dry_run_tells_and_keeps_nothing(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            ref, _, _ = await _prompt(session, project)
            new = await create_version(session, ref, Draft(*encode_content(_TEXT + "x\n"), ANNA))
            told = await rebase_overlay(session, ref, new.id, dry_run=True)
            assert (told.state, told.overlay, told.former_base) == ("rebased", 2, 1)
            assert (await resolve(session, ref)).version.id == new.id

    database.run(work)


def test_s15_jobs_settle_nothing_and_touch_only_what_is_opened_to_them(database: Any) -> None:
    project = database.project_id
    run = new_id()

    async def work(db: Database) -> None:
        closed = ArtifactRef(project, "skill", "refunds")
        skill: JsonValue = {
            "files": {"SKILL.md": "---\nname: refunds\ndescription: How.\n---\nAsk.\n"}
        }
        async with db.transaction(project) as session:
            made = await create(session, closed, skill, Note(ANNA))
            ref, _, _ = await _prompt(session, project)
            await update(session, ref, _TEXT.replace("guess.", "err."), Note(ANNA))
            (row,) = (await list_conflicts(session, project)).items
        with pytest.raises(PermissionDenied, match="read-only to jobs"):
            async with db.transaction(project) as session:
                await create_version(session, closed, _learned("{}", run, made.version.id))
        draft = MergedDraft(Author("run", run), "mine", None, "merge", None, _TEXT)
        with pytest.raises(PermissionDenied, match="a job may not settle a conflict"):
            async with db.transaction(project) as session:
                await resolve_conflict(session, ref, row.id, draft)
        with pytest.raises(PermissionDenied, match="a job may not settle a conflict"):
            async with db.transaction(project) as session:
                await dismiss_conflict(session, ref, row.id, Author("run", run))

    database.run(work)


def _agent(prompt: str, *lessons: str, model: str = "scripted/desk") -> Candidate:
    entries: list[JsonValue] = [
        {"id": f"L{n}", "text": text} for n, text in enumerate(lessons, start=1)
    ]
    return Candidate(
        components={
            "prompt": Component(kind="instructions", content=prompt),
            "learned": Component(kind="lessons", content={"entries": entries}),
        },
        harness=Harness(model=model),
    )


def test_an_agent_is_rebased_component_by_component(database: Any) -> None:
    project, run = database.project_id, new_id()
    ref = ArtifactRef(project, "agent", "desk")

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            first = await save_agent(session, project, "desk", _agent(_TEXT), author=ANNA)
            found = _agent(_TEXT, "Ask for the order number.")
            learned = await save_learned(
                session, ref, found, first.id, LearnedNote(run, "lessons help")
            )
            version = await read_version(session, learned.id)
            assert (version.origin, version.base_id, version.run_id) == ("overlay", first.id, run)
            parts = dict(await list_component_versions(session, learned.id))
            before = dict(await list_component_versions(session, first.id))
            assert parts["prompt"].id == before["prompt"].id
            assert parts["learned"].base_id == before["learned"].id
            assert (parts["learned"].origin, parts["learned"].run_id) == ("overlay", run)
            assert await read_parents(session, parts["learned"].id) == [before["learned"].id]
        async with db.transaction(project) as session:
            person = _agent(_TEXT + "Be brief.\n", model="scripted/other")
            saved = await save_agent(session, project, "desk", person, author=ANNA)
            told = await rebase_overlay(session, ref, saved.id)
            assert (told.state, told.version) == ("rebased", 4)
            rebased = (await resolve(session, ref, 4)).version
            both = await load_candidate_version(session, rebased.id)
            assert both.components["prompt"].content == _TEXT + "Be brief.\n"
            assert both.components["learned"] == found.components["learned"]
            assert both.harness.model == "scripted/other"
            assert list(both.components) == ["prompt", "learned"]
            assert (rebased.origin, rebased.base_id) == ("rebase", saved.id)
            assert sorted(await read_parents(session, rebased.id)) == sorted([learned.id, saved.id])
            parts = dict(await list_component_versions(session, rebased.id))
            own = dict(await list_component_versions(session, saved.id))
            assert parts["prompt"].id == own["prompt"].id

    database.run(work)


def test_an_agents_conflict_names_the_component(database: Any) -> None:
    project, run = database.project_id, new_id()
    ref = ArtifactRef(project, "agent", "desk")

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            first = await save_agent(session, project, "desk", _agent(_TEXT), author=ANNA)
            found = _agent(_TEXT.replace("guess.", "guess a price."))
            await save_learned(session, ref, found, first.id, LearnedNote(run))
            person = _agent(_TEXT.replace("guess.", "err."))
            saved = await save_agent(session, project, "desk", person, author=ANNA)
            told = await rebase_overlay(session, ref, saved.id)
            assert told.state == "conflict"
            assert [one.path for one in told.conflicts] == ["/components/prompt/content"]

    database.run(work)
