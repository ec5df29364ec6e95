"""Trajectories in an export: JSON lines with their token ids, secrets masked, sealed ones left."""

from __future__ import annotations

import json
from typing import Any

from instar.redaction import register_secret
from instar.registry.transfer.exporting import ExportOptions
from instar.store.projects import create_project
from instar.store.rollouts import RolloutLink, save_rollouts
from instar.store.session import Database
from instar_core.base import new_id
from instar_core.messages import Message
from instar_core.rollouts import Rollout, Step, TokenCapture, Trajectory
from instar_skills.archives import read_archive
from tests.integration.transfer.conftest import bring_in, take_out

SECRET = "canary-5e0b71d2-rollout"


def a_rollout(number: int) -> Rollout:
    """One attempt whose model repeated a secret."""
    capture = TokenCapture(prompt_ids=(1, 2, 3), reply_ids=(4, 5), logprobs=(-0.5, -0.25))
    step = Step(
        index=0,
        kind="model",
        message=Message(role="assistant", content=f"the key is {SECRET}. はい"),
        capture=capture,
    )
    trajectory = Trajectory(
        opening=(Message(role="user", content=f"question {number}"),),
        steps=(step,),
        stop="answered",
        answer="yes",
    )
    return Rollout(
        id=new_id(),
        candidate_digest="c" * 64,
        task_id=f"t{number}",
        draw=0,
        trajectory=trajectory,
    )


def test_trajectories_go_out_when_asked_for_and_are_not_imported(filled: Any) -> None:
    run = new_id()

    async def go(db: Database) -> None:
        project = filled.project_id
        register_secret(SECRET)
        rollouts = [a_rollout(number) for number in range(3)]
        links = [RolloutLink(run_id=run), RolloutLink(), RolloutLink(sealed_test_id=new_id())]
        async with db.transaction(project) as session:
            await save_rollouts(session, project, list(zip(rollouts, links, strict=True)))
        plain = read_archive(await take_out(db, project))
        assert not any(path.startswith("rollouts/") for path in plain)
        data = await take_out(db, project, ExportOptions(trajectories=True))
        files = read_archive(data)
        assert [path for path in files if path.startswith("rollouts/")] == [
            f"rollouts/{run}-1.jsonl",
            "rollouts/single-1.jsonl",
        ]
        (line,) = files[f"rollouts/{run}-1.jsonl"].splitlines()
        found = json.loads(line)
        assert found["trajectory"]["steps"][0]["capture"]["reply_ids"] == [4, 5]
        assert found["trajectory"]["opening"][0]["content"] == "question 0"
        assert not any(SECRET.encode() in content for content in files.values())
        # The sealed draw is not among them.
        assert b"question 2" not in b"".join(files.values())
        assert json.loads(files["manifest.json"])["rollouts"] == 2
        report = await bring_in(db, await create_project(db, "other"), data)
        assert any("2 trajectories" in note for note in report.notes)

    filled.run(go)
