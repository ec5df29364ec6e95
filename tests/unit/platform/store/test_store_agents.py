"""Agents: the form that is tested is the form that is stored and loaded, byte for byte."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from instar.store.agents import (
    AGENT,
    AgentVersion,
    find_agent_version,
    list_component_versions,
    load_candidate,
    load_candidate_version,
    read_agent,
    save_agent,
)
from instar.store.artifacts import ArtifactRef, read_content, read_parents, resolve
from instar.store.audit import Author
from instar.store.labels import LabelMove, delete_version, move_label
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.base import canonical_json, content_hash
from instar_core.candidates import Candidate, Component, Harness, Limits, ToolServer
from instar_core.errors import ConflictError, NotFoundError, StoreError, UserError
from instar_core.messages import Sampling

pytestmark = pytest.mark.postgres

ANNA = Author("person", "anna")
NIGHT = Author("run", "0192f000-0000-7000-8000-000000000001")


def _candidate() -> Candidate:
    return Candidate(
        # Not in the order of names: the order is part of the digest.
        components={
            "system": Component(kind="instructions", content="Answer with one tool call.\n"),
            "lessons": Component(
                kind="lessons",
                content={"entries": [{"id": "l1", "text": "Read the ticket first."}]},
                owner="job",
                budget_tokens=400,
            ),
            "demos": Component(kind="demonstrations", content={"pool": [], "k": 0}),
        },
        harness=Harness(
            model="local/qwen",
            sampling=Sampling(temperature=0.7, max_tokens=64, stop=("\n\n",)),
            tools=(ToolServer(name="desk", allow=("assign", "read")),),
            tool_protocol="text",
            limits=Limits(max_steps=3, max_cost_usd=0.1),
        ),
        note="by hand",
    )


async def _save(db: Database, project: str, candidate: Candidate, **extra: Any) -> AgentVersion:
    async with db.transaction(project) as session:
        return await save_agent(session, project, "support", candidate, author=ANNA, **extra)


def test_a_candidate_comes_back_with_the_same_digest_and_bytes(database: MigratedDatabase) -> None:
    project, sent = database.project_id, _candidate()

    async def work(db: Database) -> Candidate:
        saved = await _save(db, project, sent)
        assert saved[1:] == ("support", 1, sent.digest)
        async with db.transaction(project) as session:
            return await load_candidate(session, project, "support")

    loaded = database.run(work)
    assert loaded == sent and loaded.digest == sent.digest
    assert list(loaded.components) == list(sent.components)
    assert canonical_json(loaded) == canonical_json(sent)


# NUL is the one character that is refused.
_STORABLE = st.characters(codec="utf-8", exclude_characters="\x00")
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(_STORABLE, max_size=30),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(_STORABLE, max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    contents=st.dictionaries(
        st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1, max_size=6),
        _json,
        min_size=1,
        max_size=4,
    )
)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_s25_any_content_survives_the_round_trip(
    database: MigratedDatabase, contents: dict[str, Any]
) -> None:
    project = database.project_id
    sent = Candidate(
        components={
            name: Component(kind="instructions", content=content)
            for name, content in contents.items()
        },
        harness=Harness(model="m"),
    )

    async def work(db: Database) -> Candidate:
        saved = await _save(db, project, sent)
        async with db.transaction(project) as session:
            for name, version in await list_component_versions(session, saved.id):
                content = await read_content(session, version)
                assert content_hash(content) == content_hash(contents[name])
            return await load_candidate_version(session, saved.id)

    loaded = database.run(work)
    assert loaded.digest == sent.digest
    assert list(loaded.components) == list(sent.components)


def test_unchanged_components_keep_their_versions(database: MigratedDatabase) -> None:
    project, first = database.project_id, _candidate()
    second = first.with_component("lessons", {"entries": []}, note="fewer lessons")

    async def work(db: Database) -> None:
        one = await _save(db, project, first)
        two = await _save(db, project, second, reason="shorter", evidence={"gain": 0.1})
        async with db.transaction(project) as session:
            pins = [
                {
                    name: version.number
                    for name, version in await list_component_versions(session, v)
                }
                for v in (one.id, two.id)
            ]
            assert pins == [
                {"system": 1, "lessons": 1, "demos": 1},
                {"system": 1, "lessons": 2, "demos": 1},
            ]
            # The candidate names its parent by digest; the store knows which version that is.
            assert await read_parents(session, two.id) == [one.id]
            assert (await load_candidate(session, project, "support", 1)).digest == first.digest
            loaded = await load_candidate(session, project, "support", 2)
            assert (loaded.parents, loaded.note) == ((first.digest,), "fewer lessons")
            lessons = ArtifactRef(project, "lessons", "support/lessons")
            found = (await resolve(session, lessons, 2)).version
            assert (found.reason, found.author) == ("shorter", "anna")

    database.run(work)


def test_agents_are_found_by_label_number_and_digest(database: MigratedDatabase) -> None:
    project, first = database.project_id, _candidate()
    second = first.with_component("system", "Answer briefly.")

    async def work(db: Database) -> None:
        one = await _save(db, project, first)
        two = await _save(db, project, second)
        three = await _save(db, project, first)
        assert (three.version, three.digest) == (3, one.digest)
        ref = ArtifactRef(project, AGENT, "support")
        async with db.transaction(project) as session:
            await move_label(session, ref, LabelMove("production", 2, None), ANNA)
        async with db.transaction(project) as session:
            assert await read_agent(session, project, "support", "production") == two
            assert await read_agent(session, project, "support") == three
            assert await find_agent_version(session, project, "support", first.digest) == three
            assert await find_agent_version(session, project, "support", "0" * 64) is None
            with pytest.raises(NotFoundError, match="no agent named 'sales'"):
                await read_agent(session, project, "sales")

    database.run(work)


def test_s11_a_component_that_an_agent_pins_is_not_deleted(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        await _save(db, project, _candidate())
        part = ArtifactRef(project, "prompt", "support/system")
        agent = ArtifactRef(project, AGENT, "support")
        async with db.transaction(project) as session:
            with pytest.raises(ConflictError, match="in use: a version of 'support' pins it"):
                await delete_version(session, part, 1, ANNA)
            await delete_version(session, agent, 1, ANNA)
            await delete_version(session, part, 1, ANNA)

    database.run(work)


def test_s9_parallel_saves_of_one_agent_lose_nothing(database: MigratedDatabase) -> None:
    project, seed = database.project_id, _candidate()

    async def work(db: Database) -> None:
        variants = [
            seed.with_component("system", f"variant {i}").with_component("lessons", {"n": i})
            for i in range(10)
        ]
        saved = await asyncio.gather(*(_save(db, project, each) for each in variants))
        assert sorted(item.version for item in saved) == list(range(1, 11))
        async with db.transaction(project) as session:
            for item in saved:
                loaded = await load_candidate_version(session, item.id)
                assert loaded.digest == item.digest

    database.run(work)
    assert database.query("select count(*) from version_part") == [(30,)]


def test_a_save_that_fails_saves_no_component(database: MigratedDatabase) -> None:
    project = database.project_id
    broken = _candidate().with_component("demos", "\ud800")

    with pytest.raises(UserError, match="cannot be stored"):
        database.run(lambda db: _save(db, project, broken))
    assert database.query("select count(*) from version") == [(0,)]
    assert database.query("select count(*) from blob") == [(0,)]


def test_a_tampered_agent_is_not_loaded(database: MigratedDatabase) -> None:
    project = database.project_id

    async def load(db: Database) -> Candidate:
        async with db.transaction(project) as session:
            return await load_candidate(session, project, "support")

    database.run(lambda db: _save(db, project, _candidate()))
    database.query("update version set subject_digest = repeat('0', 64) where subject_digest <> ''")
    with pytest.raises(StoreError, match="Do not run it"):
        database.run(load)
