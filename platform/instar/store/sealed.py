"""Sealed tests: epochs, levels, the groups each test drew, and how often a group has served."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import AuditEntry, Author, append_audit
from instar_core.base import JsonValue, new_id
from instar_core.evolution import AcceptanceConfig, SealedOutcome
from instar_core.tasks import Task

__all__ = [
    "EpochRow",
    "SealedTest",
    "close_test",
    "count_acceptance",
    "count_epoch",
    "count_tests",
    "end_epoch",
    "find_open_test",
    "find_undecided_test",
    "insert_test",
    "lock_epoch",
    "read_epoch",
    "read_groups",
    "read_pool",
    "read_served",
    "read_test",
    "read_uses",
    "reopen_test",
    "serve_groups",
]

_TEST = (
    "id, run_id, agent, epoch_id, index_in_epoch, alpha_t, candidate_digest, incumbent_digest,"
    " cast(groups as text), seed, cast(config as text), state, verdict, cast(outcome as text),"
    " groups_used, resumes"
)


@dataclass(frozen=True, slots=True)
class EpochRow:
    """An agent's open epoch: its number, counted tests, and acceptances (R of e-LOND)."""

    id: str
    number: int
    tests: int
    accepted: int


@dataclass(frozen=True, slots=True)
class SealedTest:
    """One sealed test as stored."""

    id: str
    run_id: str
    agent: str
    epoch_id: str
    index_in_epoch: int | None
    alpha_t: float
    candidate_digest: str
    incumbent_digest: str
    groups: tuple[str, ...]
    seed: int
    config: AcceptanceConfig
    state: str = "open"
    verdict: str | None = None
    outcome: SealedOutcome | None = None
    groups_used: int = 0
    resumes: int = 0

    @property
    def groups_left(self) -> tuple[str, ...]:
        """The groups that no pair has used yet, in order."""
        return self.groups[self.groups_used :]


async def lock_epoch(session: AsyncSession, project_id: str, agent: str, task_set: str) -> EpochRow:
    """The agent's open epoch, locked; the first one, or the next, is made when none is open."""
    row = await _open_epoch(session, agent)
    if row is None:
        await session.execute(
            text(
                "insert into instar.sealed_epoch (id, project_id, agent, number, task_set)"
                " select cast(:id as uuid), cast(:project as uuid), cast(:agent as text),"
                " coalesce(max(number), 0) + 1, :task_set"
                " from instar.sealed_epoch where agent = cast(:agent as text)"
                " on conflict (project_id, agent, number) do nothing"
            ),
            {"id": new_id(), "project": project_id, "agent": agent, "task_set": task_set},
        )
        row = await _open_epoch(session, agent)
    assert row is not None, "an epoch was just made, or another transaction made it"
    return row


async def _open_epoch(session: AsyncSession, agent: str) -> EpochRow | None:
    row = (
        await session.execute(
            text(
                "select id, number, tests, accepted from instar.sealed_epoch"
                " where agent = :agent and state = 'open' for update"
            ),
            {"agent": agent},
        )
    ).first()
    return None if row is None else EpochRow(str(row[0]), row[1], row[2], row[3])


async def read_epoch(session: AsyncSession, agent: str, horizon: int) -> tuple[int, int]:
    """Counted tests and acceptances of the epoch in which the agent's next test would open."""
    row = (
        await session.execute(
            text(
                "select tests, accepted from instar.sealed_epoch"
                " where agent = :agent and state = 'open'"
            ),
            {"agent": agent},
        )
    ).first()
    if row is None or row[0] >= horizon:
        return 0, 0
    return int(row[0]), int(row[1])


async def count_epoch(session: AsyncSession, epoch_id: str) -> None:
    """Counts one test whose first pair ran."""
    await session.execute(
        text("update instar.sealed_epoch set tests = tests + 1 where id = cast(:id as uuid)"),
        {"id": epoch_id},
    )


async def count_acceptance(session: AsyncSession, epoch_id: str) -> None:
    """Counts one acceptance: e-LOND's R."""
    await session.execute(
        text("update instar.sealed_epoch set accepted = accepted + 1 where id = cast(:id as uuid)"),
        {"id": epoch_id},
    )


async def end_epoch(session: AsyncSession, epoch_id: str) -> None:
    """Closes an epoch; the next test opens the next one, with its level and uses anew."""
    await session.execute(
        text(
            "update instar.sealed_epoch set state = 'closed', closed_at = clock_timestamp()"
            " where id = cast(:id as uuid)"
        ),
        {"id": epoch_id},
    )


async def read_pool(session: AsyncSession, version_id: str) -> list[str]:
    """The group keys of a task-set version's sealed split, sorted."""
    rows = await session.execute(
        text(
            "select distinct group_key from instar.task"
            " where version_id = cast(:version as uuid) and split = 'sealed' order by group_key"
        ),
        {"version": version_id},
    )
    return [str(row[0]) for row in rows]


async def read_uses(session: AsyncSession, epoch_id: str) -> dict[str, int]:
    """Group key → tests of the epoch that it has served."""
    rows = await session.execute(
        text("select group_key, uses from instar.sealed_use where epoch_id = cast(:id as uuid)"),
        {"id": epoch_id},
    )
    return {str(row[0]): int(row[1]) for row in rows}


async def read_served(session: AsyncSession, agent: str) -> dict[str, int]:
    """Group key → tests of the agent that it has served in all epochs."""
    rows = await session.execute(
        text(
            "select u.group_key, sum(u.uses) from instar.sealed_use u"
            " join instar.sealed_epoch e on e.id = u.epoch_id where e.agent = :agent"
            " group by u.group_key"
        ),
        {"agent": agent},
    )
    return {str(row[0]): int(row[1]) for row in rows}


async def serve_groups(
    session: AsyncSession, project_id: str, test: SealedTest, groups: Sequence[str]
) -> None:
    """Counts one more use of each group."""
    if not groups:
        return
    await session.execute(
        text(
            "insert into instar.sealed_use (epoch_id, group_key, project_id, uses, last_test_id)"
            " select cast(:epoch as uuid), key, cast(:project as uuid), 1, cast(:test as uuid)"
            " from unnest(cast(:keys as text[])) as g (key)"
            " on conflict (epoch_id, group_key) do update"
            " set uses = instar.sealed_use.uses + 1, last_test_id = excluded.last_test_id"
        ),
        {"epoch": test.epoch_id, "project": project_id, "test": test.id, "keys": list(groups)},
    )


def _test(row: Sequence[object] | None) -> SealedTest | None:
    if row is None:
        return None
    outcome = None if row[13] is None else SealedOutcome.model_validate_json(str(row[13]))
    return SealedTest(
        id=str(row[0]),
        run_id=str(row[1]),
        agent=str(row[2]),
        epoch_id=str(row[3]),
        index_in_epoch=None if row[4] is None else int(str(row[4])),
        alpha_t=float(str(row[5])),
        candidate_digest=str(row[6]),
        incumbent_digest=str(row[7]),
        groups=tuple(json.loads(str(row[8]))),
        seed=int(str(row[9])),
        config=AcceptanceConfig.model_validate_json(str(row[10])),
        state=str(row[11]),
        verdict=None if row[12] is None else str(row[12]),
        outcome=outcome,
        groups_used=int(str(row[14])),
        resumes=int(str(row[15])),
    )


async def find_open_test(session: AsyncSession, agent: str) -> SealedTest | None:
    """The agent's open test, locked; there is at most one."""
    found = await session.execute(
        text(
            f"select {_TEST} from instar.sealed_test"
            " where agent = :agent and state = 'open' for update"
        ),
        {"agent": agent},
    )
    return _test(found.first())


async def find_undecided_test(
    session: AsyncSession, epoch_id: str, candidate: str, incumbent: str
) -> SealedTest | None:
    """The newest closed test of this pair in the epoch, if it was left undecided."""
    found = await session.execute(
        text(
            f"select {_TEST} from instar.sealed_test where epoch_id = cast(:epoch as uuid)"
            " and candidate_digest = :candidate and incumbent_digest = :incumbent"
            " and state = 'closed' order by opened_at desc limit 1 for update"
        ),
        {"epoch": epoch_id, "candidate": candidate, "incumbent": incumbent},
    )
    test = _test(found.first())
    return test if test is not None and test.verdict == "undecided" else None


async def read_test(session: AsyncSession, test_id: str) -> SealedTest | None:
    """A test by its id."""
    found = await session.execute(
        text(f"select {_TEST} from instar.sealed_test where id = cast(:id as uuid)"),
        {"id": test_id},
    )
    return _test(found.first())


async def reopen_test(session: AsyncSession, test_id: str, run_id: str) -> None:
    """Opens an undecided test again for another run, on its own level and state."""
    found = await session.execute(
        text(
            "update instar.sealed_test set state = 'open', run_id = cast(:run as uuid),"
            " resumes = resumes + 1, closed_at = null where id = cast(:id as uuid)"
            " returning project_id, agent"
        ),
        {"id": test_id, "run": run_id},
    )
    for project_id, agent in found:
        entry = _entry("sealed_test.reopen", agent, {"test": test_id})
        await append_audit(session, str(project_id), entry, Author("run", run_id))


def _entry(action: str, agent: str, details: dict[str, JsonValue]) -> AuditEntry:
    return AuditEntry(action=action, subject=f"agent/{agent}", details=details)


async def count_tests(session: AsyncSession, epoch_id: str) -> int:
    """How many tests an epoch has seen, withdrawn ones too."""
    found = await session.execute(
        text("select count(*) from instar.sealed_test where epoch_id = cast(:id as uuid)"),
        {"id": epoch_id},
    )
    return int(found.scalar_one())


async def insert_test(
    session: AsyncSession, project_id: str, test: SealedTest, task_set_version_id: str
) -> None:
    """Opens a test; its level and its groups, in order, are fixed by this."""
    groups: JsonValue = list(test.groups)
    await session.execute(
        text(
            "insert into instar.sealed_test (id, project_id, epoch_id, run_id, agent,"
            " index_in_epoch, alpha_t, candidate_digest, incumbent_digest, task_set_version_id,"
            " groups, seed, config) values (cast(:id as uuid), cast(:project as uuid),"
            " cast(:epoch as uuid), cast(:run as uuid), :agent, :index, :alpha, :candidate,"
            " :incumbent, cast(:task_set as uuid), cast(:groups as json), :seed,"
            " cast(:config as json))"
        ),
        {
            "id": test.id,
            "project": project_id,
            "epoch": test.epoch_id,
            "run": test.run_id,
            "agent": test.agent,
            "index": test.index_in_epoch,
            "alpha": test.alpha_t,
            "candidate": test.candidate_digest,
            "incumbent": test.incumbent_digest,
            "task_set": task_set_version_id,
            "groups": json.dumps(groups),
            "seed": test.seed,
            "config": test.config.model_dump_json(),
        },
    )
    details: dict[str, JsonValue] = {
        "test": test.id,
        "index": test.index_in_epoch,
        "alpha": test.alpha_t,
        "candidate": test.candidate_digest,
        "incumbent": test.incumbent_digest,
    }
    entry = _entry("sealed_test.open", test.agent, details)
    await append_audit(session, project_id, entry, Author("run", test.run_id))


async def read_groups(session: AsyncSession, test: SealedTest) -> tuple[tuple[Task, ...], ...]:
    """The tasks of an open test's unused groups, in the test's order."""
    rows = await session.execute(
        text(
            "select group_key, cast(content as text)"
            " from instar.read_sealed_tasks(cast(:test as uuid))"
        ),
        {"test": test.id},
    )
    by_group: dict[str, list[Task]] = {}
    for key, content in rows:
        by_group.setdefault(str(key), []).append(Task.model_validate_json(content))
    return tuple(tuple(by_group[key]) for key in test.groups_left)


async def close_test(
    session: AsyncSession, test_id: str, *, outcome: SealedOutcome, used: int
) -> None:
    """Records a test's outcome; one that never ran a pair gives its index back.

    Args:
        session: A project transaction.
        test_id: The test.
        outcome: What it found.
        used: Groups that were run or begun since it opened (last).
    """
    found = await session.execute(
        text(
            "update instar.sealed_test set state = 'closed', verdict = :verdict,"
            " outcome = cast(:outcome as json), closed_at = clock_timestamp(),"
            " groups_used = groups_used + :used,"
            " index_in_epoch = case when groups_used + :used > 0 then index_in_epoch end"
            " where id = cast(:id as uuid) and state = 'open'"
            " returning project_id, agent, run_id"
        ),
        {
            "id": test_id,
            "verdict": outcome.verdict,
            "outcome": outcome.model_dump_json(),
            "used": used,
        },
    )
    for project_id, agent, run_id in found:
        entry = _entry("sealed_test.close", agent, {"test": test_id, "verdict": outcome.verdict})
        await append_audit(session, str(project_id), entry, Author("run", str(run_id)))
