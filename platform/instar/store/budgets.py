"""Budget rows: locking the budgets a run draws on, in one order, and writing them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from instar_core.base import new_id
from instar_core.usage import Remaining

__all__ = ["BudgetState", "lock_budgets", "read_budgets", "save_budgets", "set_limit"]

_ORDER = "array_position(array['day','project','agent','run'], kind)"
_COLUMNS = (
    "id, kind, subject, limit_rollouts, limit_tokens, limit_cost_usd, limit_wall_s,"
    " reserved_rollouts, reserved_tokens, reserved_cost_usd, reserved_wall_s,"
    " spent_rollouts, spent_tokens, spent_cost_usd, spent_wall_s"
)


@dataclass(frozen=True, slots=True)
class BudgetState:
    """One budget row: limits (``None``: no limit), reserved and spent quantities.

    The quantities are ordered as rollouts, tokens, US dollars, seconds of wall time.
    """

    id: str
    kind: str
    subject: str
    limit: Remaining
    reserved: tuple[int, int, float, float]
    spent: tuple[int, int, float, float]


async def _select(
    session: AsyncSession, subjects: Mapping[str, str], *, lock: bool
) -> list[BudgetState]:
    rows = await session.execute(
        text(
            f"select {_COLUMNS} from instar.budget"
            " where (kind, subject) in (select * from unnest("
            "cast(:kinds as text[]), cast(:subjects as text[])))"
            f" order by {_ORDER}" + (" for update" if lock else "")
        ),
        {"kinds": list(subjects), "subjects": list(subjects.values())},
    )
    return [
        BudgetState(
            id=str(row[0]),
            kind=row[1],
            subject=row[2],
            limit=Remaining(
                rollouts=row[3],
                tokens=row[4],
                cost_usd=None if row[5] is None else float(row[5]),
                wall_s=row[6],
            ),
            reserved=(int(row[7]), int(row[8]), float(row[9]), float(row[10])),
            spent=(int(row[11]), int(row[12]), float(row[13]), float(row[14])),
        )
        for row in rows
    ]


async def lock_budgets(session: AsyncSession, subjects: Mapping[str, str]) -> list[BudgetState]:
    """Locks the budgets that exist among ``subjects`` (kind → subject), widest first.

    The order day, project, agent, run is the same for every caller, so two of them never wait for
    each other in a circle. A budget that nobody set has no row and no limit.
    """
    return await _select(session, subjects, lock=True)


async def read_budgets(session: AsyncSession, subjects: Mapping[str, str]) -> list[BudgetState]:
    """The same budgets without locks, for showing."""
    return await _select(session, subjects, lock=False)


async def save_budgets(session: AsyncSession, budgets: Sequence[BudgetState]) -> None:
    """Writes reserved and spent quantities of locked budgets back."""
    if not budgets:
        return
    columns: dict[str, list[float]] = {}
    for side in ("reserved", "spent"):
        for index in range(4):
            columns[f"{side}_{index}"] = [getattr(b, side)[index] for b in budgets]
    await session.execute(
        text(
            "update instar.budget as b set reserved_rollouts = v.r0, reserved_tokens = v.r1,"
            " reserved_cost_usd = v.r2, reserved_wall_s = v.r3, spent_rollouts = v.s0,"
            " spent_tokens = v.s1, spent_cost_usd = v.s2, spent_wall_s = v.s3"
            " from unnest(cast(:ids as uuid[]), cast(:reserved_0 as bigint[]),"
            " cast(:reserved_1 as bigint[]), cast(:reserved_2 as numeric[]),"
            " cast(:reserved_3 as float8[]), cast(:spent_0 as bigint[]),"
            " cast(:spent_1 as bigint[]), cast(:spent_2 as numeric[]),"
            " cast(:spent_3 as float8[])) as v (id, r0, r1, r2, r3, s0, s1, s2, s3)"
            " where b.id = v.id"
        ),
        {"ids": [b.id for b in budgets], **columns},
    )


async def set_limit(
    session: AsyncSession, project_id: str, kind: str, subject: str, limit: Remaining
) -> None:
    """Creates a budget, or changes the limits of one; what is reserved and spent stays."""
    await session.execute(
        text(
            "insert into instar.budget (id, project_id, kind, subject, limit_rollouts,"
            " limit_tokens, limit_cost_usd, limit_wall_s) values (cast(:id as uuid),"
            " cast(:project as uuid), :kind, :subject, :rollouts, :tokens, :cost, :wall)"
            " on conflict (project_id, kind, subject) do update set"
            " limit_rollouts = excluded.limit_rollouts, limit_tokens = excluded.limit_tokens,"
            " limit_cost_usd = excluded.limit_cost_usd, limit_wall_s = excluded.limit_wall_s"
        ),
        {
            "id": new_id(),
            "project": project_id,
            "kind": kind,
            "subject": subject,
            "rollouts": limit.rollouts,
            "tokens": limit.tokens,
            "cost": limit.cost_usd,
            "wall": limit.wall_s,
        },
    )
