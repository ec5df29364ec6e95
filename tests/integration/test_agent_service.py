"""Agents in production: one run holds on to what it resolved when it started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from instar.runtime.loop import RunEvent
from instar.runtime.service import AgentCall, AgentService
from instar.runtime.testing import ScriptedModel, calling
from instar.settings import Settings
from instar.store.agents import AGENT, AgentVersion, save_agent
from instar.store.artifacts import ArtifactRef
from instar.store.audit import Author
from instar.store.labels import ANY, LabelMove, move_label
from instar.store.servers import put_server
from instar_core.candidates import Candidate
from instar_core.messages import Message, Messages
from instar_core.testing import ReplyScript

if TYPE_CHECKING:
    from instar.store.session import Database
    from instar.store.testing import MigratedDatabase

pytestmark = pytest.mark.postgres
NOTES = str(Path(__file__).parent / "servers" / "notes_server.py")
ANNA = Author("person", "user:anna")


def _agent(words: str) -> Candidate:
    return Candidate.model_validate(
        {
            "components": {"instructions": {"kind": "instructions", "content": words}},
            "harness": {
                "model": "scripted",
                "tools": [{"name": "notes"}],
                "tool_protocol": "native",
            },
        }
    )


def _system(messages: Messages) -> str:
    return "\n".join(one.content for one in messages if one.role == "system")


async def _put_in_force(db: Database, project: str, words: str) -> AgentVersion:
    async with db.transaction(project) as session:
        saved = await save_agent(session, project, "desk", _agent(words), author=ANNA)
        ref = ArtifactRef(project, AGENT, "desk")
        move = LabelMove("production", saved.version, ANY, role="admin")
        await move_label(session, ref, move, ANNA)
    return saved


def test_s7c_a_label_that_moves_during_a_run_changes_the_next_run_and_not_this_one(
    database: MigratedDatabase, tmp_path: Path
) -> None:
    project = database.project_id
    note = calling(("write_note", {"id": "a", "text": "b"}))
    script = ReplyScript([("hello", note), ("written", lambda seen: _system(seen))])
    moved: list[AgentVersion] = []

    async def work(db: Database) -> tuple[AgentVersion, list[Any]]:
        first = await _put_in_force(db, project, "You are version one.")
        async with db.transaction(project) as session:
            server = {
                "name": "notes",
                "command": sys.executable,
                "args": [NOTES],
                "env": {"NOTES_DB": str(tmp_path / "notes.db")},
            }
            await put_server(session, project, "notes", server, ANNA)

        async def move_on(event: RunEvent) -> None:
            # In the middle of the run: its model asked for a tool, and will be asked again.
            if event.kind == "tool_started" and not moved:
                moved.append(await _put_in_force(db, project, "You are version two."))

        settings = Settings(data_dir=tmp_path)
        service = AgentService(db, settings, models=lambda _: ScriptedModel(script))
        call = AgentCall("desk", "production", (Message(role="user", content="hello"),))
        try:
            prepared = await service.prepare(project, call, ANNA)
            runs = [await service.perform(prepared, on_event=move_on)]
            runs.append(await service.run(project, call, ANNA))
        finally:
            await service.close()
        return first, runs

    first, runs = database.run(work)
    assert [run.version for run in runs] == [1, 2]
    answers = [run.trajectory.answer for run in runs]
    assert "version one" in answers[0] and "version two" in answers[1]
    recorded = dict(
        database.query("select cast(id as text), cast(agent_version_id as text) from run")
    )
    assert [recorded[run.id] for run in runs] == [first.id, moved[0].id]
    # An agent version names each of its components by the id of one version.
    pinned = database.query(
        "select v.number, p.blob_digest from version_part c join version v on v.id = c.version_id "
        "join version p on p.id = c.part_id order by 1"
    )
    assert [number for number, _ in pinned] == [1, 2] and pinned[0][1] != pinned[1][1]
