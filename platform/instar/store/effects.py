"""Effects: what a run did, under keys, written in groups under the fencing token of its job's
lease.

All functions take a session inside one transaction; the caller locks the run first with
:func:`lock_run`, then writes. Requests and results are kept as the exact JSON text that was given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.redaction import mask_known, redact_text
from instar.store.secret_refs import map_texts
from instar_core.base import JsonValue
from instar_core.errors import LeaseLost, NotFoundError
from instar_core.usage import Amount, Usage

__all__ = [
    "EffectRow",
    "EventWrite",
    "RunLock",
    "add_lost",
    "append_events",
    "close_effects",
    "count_sealed_pairs",
    "finish_effects",
    "load_effects",
    "load_source_events",
    "lock_run",
    "mark_batch",
    "read_run_state",
    "start_effects",
]


@dataclass(frozen=True, slots=True)
class RunLock:
    """A locked run: which group of writes committed last, its newest event, and whether to stop."""

    state: str
    cancel_requested: bool
    writer_token: int
    writer_batch: int
    event_seq: int


@dataclass(frozen=True, slots=True)
class EffectRow:
    """One effect as stored, or about to be stored."""

    key: str
    kind: str
    content: str
    status: str = "started"
    request: JsonValue = None
    result: JsonValue = None
    reserved: Amount = Amount()
    usage: Usage = Usage()
    fencing_token: int = 0


@dataclass(frozen=True, slots=True)
class EventWrite:
    """One event to append; ``source_seq`` is the number the replayed program gave it, if any."""

    seq: int
    source_seq: int | None
    kind: str
    message: str
    data: JsonValue


def _exact(value: JsonValue) -> str:
    return json.dumps(value, separators=(",", ":"))


async def lock_run(
    session: AsyncSession, run_id: str, job_id: str, token: int, *, kind: str = "evolution"
) -> RunLock:
    """Locks the run's row and its job's, and checks that the caller still holds the lease.

    Args:
        session: Inside a transaction; both locks last until its end.
        run_id: The evolution run.
        job_id: The job that carries the run.
        token: Fencing token the caller was given with its lease.
        kind: What the run is called in error messages.

    Raises:
        LeaseLost: If a newer token was handed out, or the job is over.
        NotFoundError: If there is no such run in this project.
    """
    row = (
        await session.execute(
            text(
                # The job first, as everybody does who locks both.
                "with held as materialized (select fencing_token, state, cancel_requested"
                " from instar.job where id = cast(:job as uuid) for share)"
                " select r.state, r.cancel_requested or held.cancel_requested, r.writer_token,"
                " r.writer_batch, r.event_seq, held.fencing_token, held.state"
                " from held cross join instar.evolution_run r"
                " where r.id = cast(:run as uuid) for update of r"
            ),
            {"run": run_id, "job": job_id},
        )
    ).first()
    if row is None:
        raise NotFoundError(f"There is no {kind} run {run_id!r} with a job {job_id!r} here.")
    if row[5] != token or row[6] not in ("leased", "running"):
        raise LeaseLost(
            f"Run {run_id} is no longer held under token {token}: its job is {row[6]!r} under "
            f"token {row[5]}.",
            remedy="Stop; whoever holds the lease now goes on from what was recorded.",
        )
    return RunLock(row[0], row[1], row[2], row[3], row[4])


async def mark_batch(
    session: AsyncSession, run_id: str, *, token: int, batch: int, event_seq: int
) -> None:
    """Notes that group ``batch`` of writer ``token`` commits with this transaction."""
    await session.execute(
        text(
            "update instar.evolution_run set writer_token = :token, writer_batch = :batch,"
            " event_seq = :seq where id = cast(:run as uuid)"
        ),
        {"token": token, "batch": batch, "seq": event_seq, "run": run_id},
    )


async def add_lost(session: AsyncSession, run_id: str, count: int) -> None:
    """Adds to the calls that a run lost in flight."""
    if count:
        await session.execute(
            text(
                "update instar.evolution_run set in_flight_lost = in_flight_lost + :count"
                " where id = cast(:run as uuid)"
            ),
            {"count": count, "run": run_id},
        )


async def load_effects(session: AsyncSession, run_id: str) -> list[EffectRow]:
    """All effects of a run, in the order of their keys; requests are not loaded."""
    rows = await session.execute(
        text(
            "select key, kind, content, status, cast(result as text), reserved_rollouts,"
            " reserved_tokens, reserved_cost_usd, reserved_wall_s, cast(usage as text),"
            " fencing_token"
            " from instar.effect where run_id = cast(:run as uuid) order by key"
        ),
        {"run": run_id},
    )
    return [
        EffectRow(
            key=row[0],
            kind=row[1],
            content=row[2],
            status=row[3],
            result=None if row[4] is None else json.loads(row[4]),
            reserved=Amount(rollouts=row[5], tokens=row[6], cost_usd=float(row[7]), wall_s=row[8]),
            usage=Usage() if row[9] is None else Usage.model_validate_json(row[9]),
            fencing_token=row[10],
        )
        for row in rows
    ]


async def start_effects(
    session: AsyncSession, project_id: str, run_id: str, effects: Sequence[EffectRow]
) -> None:
    """Records effects as started; one that was abandoned before starts again as a new attempt."""
    if not effects:
        return
    await session.execute(
        text(
            "insert into instar.effect (run_id, key, project_id, kind, content, status, request,"
            " reserved_rollouts, reserved_tokens, reserved_cost_usd, reserved_wall_s,"
            " fencing_token)"
            " select cast(:run as uuid), key, cast(:project as uuid), kind, content, 'started',"
            " request, rollouts, tokens, cost, wall, :token"
            " from unnest(cast(:keys as text[]), cast(:kinds as text[]), cast(:contents as text[]),"
            " cast(:requests as json[]), cast(:rollouts as bigint[]), cast(:tokens as bigint[]),"
            " cast(:costs as numeric[]), cast(:walls as float8[]))"
            " as e (key, kind, content, request, rollouts, tokens, cost, wall)"
            " on conflict (run_id, key) do update set status = 'started', kind = excluded.kind,"
            " content = excluded.content, request = excluded.request, result = null,"
            " attempt = instar.effect.attempt + 1, usage = null,"
            " reserved_rollouts = excluded.reserved_rollouts,"
            " reserved_tokens = excluded.reserved_tokens,"
            " reserved_cost_usd = excluded.reserved_cost_usd,"
            " reserved_wall_s = excluded.reserved_wall_s,"
            " fencing_token = excluded.fencing_token, started_at = clock_timestamp(),"
            " finished_at = null"
            " where instar.effect.status = 'abandoned'"
        ),
        {
            "run": run_id,
            "project": project_id,
            "token": effects[0].fencing_token,
            "keys": [e.key for e in effects],
            "kinds": [e.kind for e in effects],
            "contents": [e.content for e in effects],
            "requests": [None if e.request is None else _exact(e.request) for e in effects],
            "rollouts": [e.reserved.rollouts for e in effects],
            "tokens": [e.reserved.tokens for e in effects],
            "costs": [e.reserved.cost_usd for e in effects],
            "walls": [e.reserved.wall_s for e in effects],
        },
    )


async def _close(
    session: AsyncSession, run_id: str, effects: Sequence[EffectRow], spent_rollouts: Sequence[int]
) -> None:
    await session.execute(
        text(
            "update instar.effect as f set status = e.status, result = e.result, usage = e.usage,"
            " usage_rollouts = e.rollouts, usage_tokens = e.tokens, usage_cost_usd = e.cost,"
            " usage_wall_s = e.wall, fencing_token = :token, finished_at = clock_timestamp()"
            " from unnest(cast(:keys as text[]), cast(:states as text[]), cast(:results as json[]),"
            " cast(:usages as json[]), cast(:rollouts as bigint[]), cast(:tokens as bigint[]),"
            " cast(:costs as numeric[]), cast(:walls as float8[]))"
            " as e (key, status, result, usage, rollouts, tokens, cost, wall)"
            " where f.run_id = cast(:run as uuid) and f.key = e.key"
        ),
        {
            "run": run_id,
            "token": effects[0].fencing_token,
            "keys": [e.key for e in effects],
            "states": [e.status for e in effects],
            "results": [_exact(e.result) if e.status == "finished" else None for e in effects],
            "usages": [e.usage.model_dump_json() for e in effects],
            "rollouts": list(spent_rollouts),
            "tokens": [e.usage.tokens for e in effects],
            "costs": [e.usage.cost_usd for e in effects],
            "walls": [e.usage.wall_s for e in effects],
        },
    )


async def finish_effects(session: AsyncSession, run_id: str, effects: Sequence[EffectRow]) -> None:
    """Records the results of started effects."""
    if effects:
        await _close(session, run_id, effects, [e.reserved.rollouts for e in effects])


async def close_effects(session: AsyncSession, run_id: str, effects: Sequence[EffectRow]) -> None:
    """Closes started effects without a result: abandoned, with what they are taken to have used."""
    if effects:
        await _close(session, run_id, effects, [0 for _ in effects])


async def append_events(
    session: AsyncSession, project_id: str, run_id: str, token: int, events: Sequence[EventWrite]
) -> None:
    """Appends events with the numbers the caller gave them under the run's lock."""
    if not events:
        return
    await session.execute(
        text(
            "insert into instar.run_event (run_id, seq, project_id, source_seq, kind, message,"
            " data, fencing_token)"
            " select cast(:run as uuid), seq, cast(:project as uuid), source_seq, kind, message,"
            " data, :token"
            " from unnest(cast(:seqs as integer[]), cast(:sources as integer[]),"
            " cast(:kinds as text[]), cast(:messages as json[]), cast(:datas as json[]))"
            " as e (seq, source_seq, kind, message, data)"
        ),
        {
            "run": run_id,
            "project": project_id,
            "token": token,
            "seqs": [e.seq for e in events],
            "sources": [e.source_seq for e in events],
            "kinds": [e.kind for e in events],
            "messages": [_exact(redact_text(e.message)) for e in events],
            "datas": [_exact(map_texts(e.data, mask_known)) for e in events],
        },
    )


async def load_source_events(session: AsyncSession, run_id: str) -> set[int]:
    """The numbers of the replayed program's events that are stored."""
    rows = await session.execute(
        text(
            "select source_seq from instar.run_event where run_id = cast(:run as uuid)"
            " and source_seq is not null"
        ),
        {"run": run_id},
    )
    return {int(row[0]) for row in rows}


async def count_sealed_pairs(session: AsyncSession, run_id: str, test_id: str) -> int:
    """How many pairs of a sealed test have begun, if only in one arm: they begin in order."""
    row = await session.execute(
        text(
            # Keys of its rollouts end in /p<pair>.<attempt>.<arm>.<repeat>.
            "select coalesce(1 + max(cast(substring(key from '/p([0-9]+)[.][^/]*$') as int)), 0)"
            " from instar.effect where run_id = cast(:run as uuid)"
            " and kind = 'rollout' and request ->> 'sealed_test' = :test"
        ),
        {"run": run_id, "test": test_id},
    )
    return int(row.scalar_one())


async def read_run_state(session: AsyncSession, run_id: str) -> str:
    """The state of a run; ``cancelled`` for one that is not there any more."""
    row = await session.execute(
        text("select state from instar.evolution_run where id = cast(:run as uuid)"),
        {"run": run_id},
    )
    return str(row.scalar_one_or_none() or "cancelled")
