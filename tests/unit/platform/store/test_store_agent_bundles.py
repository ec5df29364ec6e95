"""Bundles: agents pin components so that an export keeps every byte, and old ones still load."""

from __future__ import annotations

import pytest

from instar.store.agents import (
    AGENT,
    list_component_versions,
    load_candidate,
    load_candidate_version,
    save_agent,
)
from instar.store.artifacts import (
    JSON,
    ArtifactRef,
    Draft,
    create_version,
    read_artifact,
    read_content,
    read_version,
    set_job_access,
)
from instar.store.audit import Author
from instar.store.labels import (
    delete_artifact,
    delete_version,
    restore_artifact,
    restore_version,
)
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.base import JsonValue, canonical_json
from instar_core.candidates import Candidate, Component, Harness
from instar_core.errors import ConflictError, StoreError

pytestmark = pytest.mark.postgres

ANNA = Author("person", "anna")
ROLLOUT = "01920000-0000-7000-8000-00000000abcd"


def _candidate() -> Candidate:
    pool: list[JsonValue] = [
        {"id": "a", "input": "x", "answer": "y", "source": ROLLOUT},
        {"id": "b", "input": "x", "answer": "y", "source": "reference:t1"},
        {"id": "c", "input": "x", "answer": "y", "source": "by hand"},
    ]
    return Candidate(
        components={
            "system": Component(kind="instructions", content="Be kind."),
            "tools": Component(kind="tool_descriptions", content={"close": "Closes."}),
            "rules": Component(kind="tool_policy", content={"rules": []}, trainable=False),
            "notes": Component(kind="memory", content={"entries": []}),
            "grade": Component(kind="judge", content={"model": "m"}),
            "shown": Component(kind="demonstrations", content={"pool": pool}),
        },
        harness=Harness(model="m"),
    )


def test_a_bundle_names_no_ids_and_components_lie_under_registry_kinds(
    database: MigratedDatabase,
) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            saved = await save_agent(session, project, "desk", _candidate(), author=ANNA)
            bundle = await read_content(session, await read_version(session, saved.id))
            pins = await list_component_versions(session, saved.id)
            text = canonical_json(bundle).decode()
            assert all(version.id not in text for _, version in pins)
            assert isinstance(bundle, dict) and bundle["format"] == 2
            parts = bundle["components"]
            assert isinstance(parts, list)
            kinds = {one["name"]: one["artifact"]["kind"] for one in parts}  # type: ignore[index,call-overload]
            assert kinds == {
                "system": "prompt",
                "tools": "tool_definition",
                "rules": "policy",
                "notes": "memory_bank",
                "grade": "evaluator",
                "shown": "demonstrations",
            }
            for name, kind in kinds.items():
                row = await read_artifact(session, ArtifactRef(project, str(kind), f"desk/{name}"))
                assert row.job_access == ("none" if name == "rules" else "overlay")

    database.run(work)
    edges = database.query("select rollout_id::text from instar.version_rollout")
    assert edges == [(ROLLOUT,)]


def test_a_bundle_of_the_first_format_still_loads(database: MigratedDatabase) -> None:
    project, candidate = database.project_id, _candidate()

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            saved = await save_agent(session, project, "desk", candidate, author=ANNA)
            pins = await list_component_versions(session, saved.id)
            bundle = {
                "format": 1,
                "candidate": candidate.digest,
                "components": [
                    {
                        "name": name,
                        "version_id": version.id,
                        "version": version.number,
                        "digest": version.blob_digest,
                        **candidate.components[name].model_dump(exclude={"content"}),
                    }
                    for name, version in pins
                ],
                "harness": candidate.harness.model_dump(mode="json"),
                "parents": [],
                "note": "",
            }
            old = await create_version(
                session,
                ArtifactRef(project, AGENT, "old"),
                Draft(
                    canonical_json(bundle),
                    JSON,
                    ANNA,
                    subject_digest=candidate.digest,
                    parts=[(name, version.id) for name, version in pins],
                ),
            )
            loaded = await load_candidate_version(session, old.id)
            assert loaded.digest == candidate.digest
            # A bundle whose pins are not those it was saved with is not run.
            torn = await create_version(
                session,
                ArtifactRef(project, AGENT, "torn"),
                Draft(canonical_json(bundle), JSON, ANNA, parts=[(n, v.id) for n, v in pins[:-1]]),
            )
            with pytest.raises(StoreError, match="does not pin what it was saved with"):
                await load_candidate_version(session, torn.id)

    database.run(work)


def test_what_a_person_said_about_jobs_outlives_the_next_save(database: MigratedDatabase) -> None:
    project, ref = database.project_id, ArtifactRef(database.project_id, AGENT, "desk")

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            await save_agent(session, project, "desk", _candidate(), author=ANNA)
            assert (await read_artifact(session, ref)).job_access == "overlay"
            await set_job_access(session, ref, "none", ANNA)
            changed = _candidate().with_component("system", "Be brief.")
            await save_agent(session, project, "desk", changed, author=ANNA)
            assert (await read_artifact(session, ref)).job_access == "none"
            assert (await load_candidate(session, project, "desk")).digest == changed.digest

    database.run(work)


def test_a_component_that_a_person_closed_to_jobs_stays_closed_until_it_is_made_trainable_anew(
    database: MigratedDatabase,
) -> None:
    project = database.project_id
    ref = ArtifactRef(project, "prompt", "desk/system")

    async def work(db: Database) -> list[str]:
        seen: list[str] = []

        async def save(text: str, *, trainable: bool) -> None:
            async with db.transaction(project) as session:
                part = Component(kind="instructions", content=text, trainable=trainable)
                changed = _candidate().model_copy(
                    update={"components": {**_candidate().components, "system": part}}
                )
                await save_agent(session, project, "desk", changed, author=ANNA)
                seen.append((await read_artifact(session, ref)).job_access)

        await save("Be kind.", trainable=True)
        async with db.transaction(project) as session:
            await set_job_access(session, ref, "none", ANNA)
        await save("Be kind.", trainable=True)
        await save("Be brief.", trainable=True)
        await save("Be brief.", trainable=False)
        async with db.transaction(project) as session:
            await set_job_access(session, ref, "overlay", ANNA)
        await save("Be terse.", trainable=False)
        await save("Be terse.", trainable=True)
        return seen

    assert database.run(work) == ["overlay", "none", "none", "none", "overlay", "overlay"]


def test_s5_what_pins_something_archived_comes_back_after_it(database: MigratedDatabase) -> None:
    project = database.project_id
    agent = ArtifactRef(project, AGENT, "desk")
    part = ArtifactRef(project, "prompt", "desk/system")

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            await save_agent(session, project, "desk", _candidate(), author=ANNA)
            await delete_artifact(session, agent, ANNA)
            await delete_artifact(session, part, ANNA)
        with pytest.raises(ConflictError, match="pins prompt 'desk/system', which is archived"):
            async with db.transaction(project) as session:
                await restore_artifact(session, agent, ANNA)
        async with db.transaction(project) as session:
            await restore_artifact(session, part, ANNA)
            await restore_artifact(session, agent, ANNA)
            changed = _candidate().with_component("system", "Be brief.")
            await save_agent(session, project, "desk", changed, author=ANNA)
            await delete_version(session, agent, 1, ANNA)
            await delete_version(session, part, 1, ANNA)
        with pytest.raises(ConflictError, match="pins version 1 of prompt 'desk/system'"):
            async with db.transaction(project) as session:
                await restore_version(session, agent, 1, ANNA)
        async with db.transaction(project) as session:
            await restore_version(session, part, 1, ANNA)
            await restore_version(session, agent, 1, ANNA)

    database.run(work)
