"""Task sets whose sealed split stays sealed, and rollouts that come back as they went in."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import text

from instar.store.artifacts import ArtifactRef, read_content, read_version
from instar.store.audit import Author
from instar.store.rollouts import (
    RolloutFilter,
    RolloutLink,
    find_by_identity,
    list_rollouts,
    load_trajectory,
    read_rollout,
    save_rollouts,
    save_score,
)
from instar.store.session import Database
from instar.store.tables import SealedEpochRow, SealedTestRow
from instar.store.task_sets import (
    SplitCount,
    TaskSetVersion,
    count_tasks,
    create_task_set,
    list_groups,
    read_splits,
    read_task_set,
    read_tasks,
)
from instar.store.testing import MigratedDatabase
from instar_core.base import new_id
from instar_core.errors import NotFoundError, PermissionDenied, StoreError, UserError
from instar_core.messages import Message, ToolCall
from instar_core.rollouts import Rollout, Score, Step, TokenCapture, Trajectory
from instar_core.tasks import Split, Task, VerifierSpec
from instar_core.usage import Usage

pytestmark = pytest.mark.postgres

ANNA = Author("person", "anna")


def _task(name: str, split: Split, group: str, words: str = "") -> Task:
    return Task(
        id=name,
        input=words or f"input of {name} \u00e9\x01",
        split=split,
        group=group,
        verifier=VerifierSpec(name="exact", config={"z": 1, "answer": "yes", "a": None}),
        environment={"tickets": [{"id": 1}]},
        reference_actions=(ToolCall(id="c", name="assign", arguments={"queue": "moss"}),),
        metadata={"source": "hand"},
    )


def _tasks() -> list[Task]:
    return [
        _task("t1", "train", "g1"),
        _task("t2", "train", "g1"),
        _task("v1", "validation", "g2"),
        _task("s1", "sealed", "g3", "the secret phrase"),
        _task("s2", "sealed", "g4", "another secret"),
        _task("s3", "sealed", "g4", "third secret"),
    ]


async def _create(db: Database, project: str, tasks: list[Task] | None = None) -> TaskSetVersion:
    async with db.transaction(project) as session:
        return await create_task_set(
            session, project, "tickets", tasks or _tasks(), author=ANNA, reason="first import"
        )


async def _open_test(db: Database, project: str, version: str, groups: list[str]) -> str:
    async with db.transaction(project) as session:
        epoch = SealedEpochRow(
            id=new_id(), project_id=project, agent="support", number=1, task_set="tickets"
        )
        session.add(epoch)
        await session.flush()
        test = SealedTestRow(
            id=new_id(),
            project_id=project,
            epoch_id=epoch.id,
            agent="support",
            index_in_epoch=1,
            alpha_t=0.0005,
            candidate_digest="c",
            incumbent_digest="i",
            task_set_version_id=version,
            groups=groups,
            seed=7,
            config={},
        )
        session.add(test)
        await session.flush()
        return test.id


async def _sealed(db: Database, project: str, test: str) -> list[tuple[str, str]]:
    async with db.transaction(project) as session:
        rows = await session.execute(
            text(
                "select task_id, content->>'input' from "
                "instar.read_sealed_tasks(cast(:test as uuid))"
            ),
            {"test": test},
        )
        return [(str(row[0]), str(row[1])) for row in rows]


def test_open_tasks_come_back_equal_and_in_order(database: MigratedDatabase) -> None:
    project, sent = database.project_id, _tasks()

    async def work(db: Database) -> None:
        version = await _create(db, project)
        assert version[1:] == ("tickets", 1)
        async with db.transaction(project) as session:
            assert await read_tasks(session, version.id, "train") == sent[:2]
            splits = await read_splits(session, version.id)
            assert splits.validation == (sent[2],)
            assert splits.train[0].content_digest == sent[0].content_digest
            assert await count_tasks(session, version.id) == {
                "train": SplitCount(2, 1),
                "validation": SplitCount(1, 1),
                "sealed": SplitCount(3, 2),
            }
            assert await list_groups(session, version.id, "sealed") == {"g3": 1, "g4": 2}
            assert await read_task_set(session, project, "tickets") == version
            with pytest.raises(NotFoundError):
                await read_task_set(session, project, "tickets", "production")

    database.run(work)


def test_the_sealed_split_cannot_be_read_by_the_application(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> str:
        version = await _create(db, project)
        async with db.transaction(project) as session:
            with pytest.raises(PermissionDenied, match="the sealed split cannot be read"):
                await read_tasks(session, version.id, "sealed")
            manifest = await read_content(session, await read_version(session, version.id))
            everything = [json.dumps(manifest)]
            rows = await session.execute(text("select cast(t as text) from task t"))
            everything.extend(str(row[0]) for row in rows)
        with pytest.raises(StoreError, match="permission denied"):
            async with db.transaction(project) as session:
                await session.execute(text("select content from sealed_task"))
        return "\n".join(everything)

    visible = database.run(work)
    assert "s1" in visible and "secret" not in visible
    assert database.query("select count(*) from sealed_task") == [(3,)]


def test_a_sealed_test_reads_its_own_groups_while_it_is_open(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        version = await _create(db, project)
        test = await _open_test(db, project, version.id, ["g4"])
        assert await _sealed(db, project, test) == [
            ("s2", "another secret"),
            ("s3", "third secret"),
        ]
        # Not from another project, not with an unknown id, not once it is closed.
        assert await _sealed(db, new_id(), test) == []
        assert await _sealed(db, project, new_id()) == []
        database.query("update sealed_test set state = 'closed'")
        assert await _sealed(db, project, test) == []

    database.run(work)


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([], "at least one task"),
        ([_task("a", "train", "g"), _task("a", "train", "h")], "2 tasks have the id 'a'"),
        (
            [_task("a", "train", "g"), _task("b", "sealed", "g")],
            "'g' is in two splits, train and sealed .task 'b'",
        ),
    ],
)
def test_broken_task_sets_are_refused_whole(
    database: MigratedDatabase, tasks: list[Task], words: str
) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            await create_task_set(session, project, "tickets", tasks, author=ANNA)

    with pytest.raises(UserError, match=words):
        database.run(work)
    assert database.query("select count(*) from artifact") == [(0,)]


def test_a_large_task_set_is_saved_in_one_go(database: MigratedDatabase) -> None:
    tasks = [
        _task(f"t{i}", ("train", "validation", "sealed")[i % 3], f"g{i // 3}-{i % 3}")
        for i in range(1200)
    ]

    async def work(db: Database) -> dict[Split, SplitCount]:
        version = await _create(db, database.project_id, tasks)
        async with db.transaction(database.project_id) as session:
            return await count_tasks(session, version.id)

    assert database.run(work)["sealed"] == SplitCount(400, 400)


def _rollout(run: str, task: str = "t1", reward: float | None = 1.0) -> Rollout:
    system = Message(role="system", content="Be brief.\x00")
    call = ToolCall(id="c1", name="assign", arguments={"queue": "moss", "n": 1})
    steps = (
        Step(
            index=0,
            kind="model",
            message=Message(role="assistant", content="", tool_calls=(call,)),
            request_hash="r" * 64,
            model="local/qwen",
            finish_reason="length",
            capture=TokenCapture(
                prompt_ids=(1, 2, 151_935), reply_ids=(3, 4), logprobs=(-0.1, -1e-300), adapter="a"
            ),
            usage=Usage(input_tokens=3, output_tokens=2, model_calls=1, cost_usd=1e-7),
        ),
        Step(
            index=1,
            kind="tool",
            message=Message(role="tool", content="done", tool_call_id="c1", name="assign"),
            tool_call=call,
            is_error=True,
        ),
        Step(index=2, kind="model", message=system, capture=TokenCapture()),
    )
    score = None
    if reward is not None:
        score = Score(reward=reward, feedback="well \x00done", verifier="state", details={"b": 1})
    return Rollout(
        id=new_id(),
        task_id=task,
        candidate_digest="d" * 64,
        draw=0,
        arm="leaveout",
        trajectory=Trajectory(
            opening=(system, Message(role="user", content="Ticket 7")),
            steps=steps,
            stop="tool_final",
            answer="moss",
            final_state={"tickets": {"7": "moss"}},
        ),
        score=score,
        usage=Usage(input_tokens=3, output_tokens=2, model_calls=1, cost_usd=1e-7),
        error="" if reward is not None else f"ModelError in {run}",
    )


async def _save(db: Database, project: str, *items: tuple[Rollout, RolloutLink]) -> None:
    async with db.transaction(project) as session:
        await save_rollouts(session, project, items)


def test_rollouts_come_back_equal_with_lazy_trajectories(database: MigratedDatabase) -> None:
    project, run = database.project_id, new_id()
    scored, lost = _rollout(run), _rollout(run, "t2", None)

    async def work(db: Database) -> None:
        link = RolloutLink(run_id=run, identity="i1")
        await _save(db, project, (scored, link), (lost, RolloutLink(run_id=run)))
        await _save(db, project, (scored, link))
        async with db.transaction(project) as session:
            assert await read_rollout(session, scored.id) == scored
            assert await read_rollout(session, lost.id) == lost
            head = await read_rollout(session, scored.id, trajectory=False)
            assert head.trajectory.steps == () and head.trajectory.answer == "moss"
            assert head.score == scored.score
            assert await load_trajectory(session, scored.id) == scored.trajectory
            assert await find_by_identity(session, project, "i1") == scored.id
            assert await find_by_identity(session, project, "i2") is None
            with pytest.raises(NotFoundError):
                await read_rollout(session, new_id())

    database.run(work)
    # Five messages were said twice over two rollouts, and four of them are different.
    assert database.query("select count(*) from message") == [(4,)]
    assert database.query("select count(*) from step") == [(6,)]
    assert database.query("select count(*) from rollout_default") == [(0,)]


def test_lists_leave_sealed_rollouts_out(database: MigratedDatabase) -> None:
    project, run = database.project_id, new_id()
    items = [_rollout(run, f"t{i}", i / 4) for i in range(5)]

    async def work(db: Database) -> None:
        await _save(db, project, *[(item, RolloutLink(run_id=run)) for item in items[:4]])
        sealed = RolloutLink(run_id=run, sealed_test_id=new_id(), identity="i9")
        await _save(db, project, (items[4], sealed))
        async with db.transaction(project) as session:
            first = await list_rollouts(session, project, RolloutFilter(run_id=run), limit=3)
            assert first.next_cursor is not None
            rest = await list_rollouts(
                session, project, RolloutFilter(run_id=run), limit=3, cursor=first.next_cursor
            )
            found = [item.task_id for item in (*first.items, *rest.items)]
            assert sorted(found) == ["t0", "t1", "t2", "t3"]
            assert {item.reward for item in first.items} <= {0.0, 0.25, 0.5, 0.75}
            only = await list_rollouts(session, project, RolloutFilter(task_id="t2"))
            assert [item.id for item in only.items] == [items[2].id]
            none = await list_rollouts(session, project, RolloutFilter(candidate_digest="e"))
            assert none == ([], None)
            # A sealed draw is always fresh: it is not found again either.
            assert await find_by_identity(session, project, "i9") is None

    database.run(work)


def test_scores_of_other_verifiers_are_kept_apart(database: MigratedDatabase) -> None:
    project, rollout = database.project_id, _rollout("r")

    async def work(db: Database) -> None:
        await _save(db, project, (rollout, RolloutLink()))
        async with db.transaction(project) as session:
            await save_score(session, project, rollout.id, Score(reward=0.0, verifier="strict"))
            await save_score(session, project, rollout.id, Score(reward=0.3, verifier="state"))
        async with db.transaction(project) as session:
            assert (await read_rollout(session, rollout.id)).score == rollout.score

    database.run(work)
    assert database.query("select verifier, reward from rollout_score order by 1") == [
        ("state", 1.0),
        ("strict", 0.0),
    ]


def test_a_task_set_is_an_artifact_among_others(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        await _create(db, project)
        second = await _create(db, project, _tasks()[:3])
        assert second.version == 2
        async with db.transaction(project) as session:
            old = await read_task_set(session, project, "tickets", 1)
            assert (await count_tasks(session, old.id))["sealed"].tasks == 3
            assert (await count_tasks(session, second.id))["sealed"].tasks == 0
            assert ArtifactRef(project, "task_set", "tickets").name == second.name

    database.run(work)
