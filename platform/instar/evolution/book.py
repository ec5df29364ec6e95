"""The sealed book on Postgres: levels by e-LOND per agent and epoch, groups without replacement.

An agent has at most one open test. A test's level and its groups, in their random order, are fixed
when it opens and belong to the run that opened it: taken up again after a crash it goes on with
both. A group that served its share of tests in an epoch is used up, and a pool that can no longer
serve a whole test is worn: nothing more is promoted until sealed tasks are added.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution.retry import StorePatience, with_patience
from instar.store import effects, sealed
from instar.store.projects import read_project
from instar_core.base import JsonValue, content_hash
from instar_core.candidates import Candidate
from instar_core.errors import ConflictError, UserError
from instar_core.evolution import AcceptanceConfig, SealedOutcome
from instar_core.lab import SealedTicket
from instar_core.statistics.elond import level

if TYPE_CHECKING:
    from instar.evolution.context import JobContext
    from instar.evolution.facts import RunFacts
    from instar.store.session import Database

__all__ = ["BookConfig", "PostgresBook", "choose_groups", "open_book"]

_OVER = frozenset({"succeeded", "no_improvement", "failed", "cancelled", "budget_exhausted"})


@dataclass(frozen=True, slots=True)
class BookConfig:
    """Whose tests the book keeps.

    Attributes:
        project_id: Project of the run.
        run_id: The evolution run that proposes.
        job_id: The job whose lease the writer holds.
        token: Fencing token of that lease.
        agent: Name of the agent.
        task_set: Name of the task set, for messages.
        task_set_version_id: The version whose sealed split is drawn from.
        acceptance: Rules of the test.
        seed: Seed of the run; orders the groups.
    """

    project_id: str
    run_id: str
    job_id: str
    token: int
    agent: str
    task_set: str
    task_set_version_id: str
    acceptance: AcceptanceConfig
    seed: int
    patience: StorePatience = field(default_factory=StorePatience)


def choose_groups(
    pool: list[str],
    uses: dict[str, int],
    served: dict[str, int],
    config: AcceptanceConfig,
    seed: int,
) -> tuple[str, ...]:
    """The groups of one test in random order: the least used first, none past its share.

    Args:
        pool: All sealed group keys.
        uses: Group key → tests served in this epoch.
        served: Group key → tests served in all epochs.
        config: Sizes and shares.
        seed: Decides ties and the order.

    Raises:
        UserError: If the pool is too small for any test, or worn.
    """
    if len(pool) < config.min_pairs:
        raise UserError(
            f"The sealed split has {len(pool)} groups; a test needs at least {config.min_pairs}.",
            remedy="Add sealed tasks of new groups and start again.",
        )
    rng = random.Random(seed)  # noqa: S311 - an order that can be repeated, not a secret
    free = [key for key in sorted(pool) if uses.get(key, 0) < config.max_uses_of_group]
    whole = min(config.max_pairs, len(pool))
    if len(free) < whole:
        raise UserError(
            f"The sealed pool is worn: {len(pool) - len(free)} of its {len(pool)} groups served "
            f"{config.max_uses_of_group} tests in this epoch, and the {len(free)} left are fewer "
            f"than the {whole} of a whole test.",
            remedy="Move the used groups to the training split and add new sealed tasks.",
        )
    rng.shuffle(free)
    free.sort(key=lambda key: served.get(key, 0))
    chosen = free[:whole]
    rng.shuffle(chosen)
    return tuple(chosen)


class PostgresBook:
    """The sealed tests of one agent, for the one worker that holds the run's lease."""

    def __init__(self, db: Database, config: BookConfig) -> None:
        self.config = config
        self._db = db

    async def open_test(self, candidate: Candidate, incumbent: Candidate) -> SealedTicket:
        """Opens the next test, or takes this run's test of the same pair up again.

        Raises:
            UserError: If the pool is worn or too small, or another run's test is open.
            LeaseLost: If another worker holds the run.
        """
        return await with_patience(
            lambda: self._open_test(candidate.digest, incumbent.digest),
            self.config.patience,
            "Opening a sealed test",
        )

    async def close(
        self, ticket: SealedTicket, outcome: SealedOutcome, candidate: Candidate
    ) -> None:
        """Records the outcome once; an accepted test raises e-LOND's R."""
        del candidate
        await with_patience(
            lambda: self._close(ticket.test_id, outcome),
            self.config.patience,
            "Closing a sealed test",
        )

    async def withdraw(self, reason: str) -> None:
        """Closes this run's open test, if any, as undecided: the run ends without a verdict."""
        await with_patience(
            lambda: self._withdraw(reason), self.config.patience, "Closing a sealed test"
        )

    async def _lock(self, session: AsyncSession) -> None:
        config = self.config
        await effects.lock_run(session, config.run_id, config.job_id, config.token)

    async def _open_test(self, candidate: str, incumbent: str) -> SealedTicket:
        config = self.config
        async with self._db.transaction(config.project_id) as session:
            await self._lock(session)
            epoch = await self._epoch(session)
            test = await sealed.find_open_test(session, config.agent)
            if test is not None and not self._mine(test, candidate, incumbent):
                await self._end_other(session, test)
                epoch, test = await self._epoch(session), None
            if test is None:
                test = await self._resume(session, epoch, candidate, incumbent)
            if test is None:
                test = await self._draw(session, epoch, candidate, incumbent)
            groups = await sealed.read_groups(session, test)
        resumed = test.outcome if test.resumes else None
        return SealedTicket(
            test_id=test.id,
            alpha_t=test.alpha_t,
            index_in_epoch=test.index_in_epoch or 1,
            groups=groups,
            seed=test.seed + test.resumes,
            config=test.config,
            state=None if resumed is None else resumed.state,
        )

    def _mine(self, test: sealed.SealedTest, candidate: str, incumbent: str) -> bool:
        return test.run_id == self.config.run_id and (
            (test.candidate_digest, test.incumbent_digest) == (candidate, incumbent)
        )

    async def _epoch(self, session: AsyncSession) -> sealed.EpochRow:
        config = self.config
        return await sealed.lock_epoch(session, config.project_id, config.agent, config.task_set)

    async def _resume(
        self, session: AsyncSession, epoch: sealed.EpochRow, candidate: str, incumbent: str
    ) -> sealed.SealedTest | None:
        """The pair's undecided test, on its own level, with the groups that remain."""
        test = await sealed.find_undecided_test(session, epoch.id, candidate, incumbent)
        if test is None or test.outcome is None or test.outcome.state is None:
            return None
        if test.outcome.reason == "missing":
            return None  # what is missing stays missing: only a new test, on a new level
        fed = cast(dict[str, list[JsonValue]], test.outcome.state).get("pairs", [])
        if not test.groups_left or len(fed) + len(test.groups_left) < test.config.min_pairs:
            return None
        await sealed.reopen_test(session, test.id, self.config.run_id)
        return await sealed.read_test(session, test.id)

    async def _end_other(self, session: AsyncSession, other: sealed.SealedTest) -> None:
        """Ends the test that a finished run left open.

        Raises:
            ConflictError: If its run still goes on.
        """
        state = await effects.read_run_state(session, other.run_id)
        if state not in _OVER:
            raise ConflictError(
                f"A sealed test of the agent {self.config.agent!r} is open in the run "
                f"{other.run_id}, which is {state}.",
                remedy="Wait for that run, or cancel it.",
            )
        await self._end(session, other, _abandoned("Its run ended before a verdict."))

    async def _draw(
        self, session: AsyncSession, epoch: sealed.EpochRow, candidate: str, incumbent: str
    ) -> sealed.SealedTest:
        config, rules = self.config, self.config.acceptance
        if epoch.tests >= rules.epoch_tests:
            await sealed.end_epoch(session, epoch.id)
            epoch = await self._epoch(session)
        index = epoch.tests + 1
        # No chance goes into name and seed, so that the same history gives the same test anywhere.
        history = content_hash(
            [
                (await read_project(session, config.project_id)).name,
                config.agent,
                config.seed,
                epoch.number,
                await sealed.count_tests(session, epoch.id),
                candidate,
                incumbent,
            ]
        )
        seed = int(history[32:47], 16)
        pool = await sealed.read_pool(session, config.task_set_version_id)
        uses = await sealed.read_uses(session, epoch.id)
        served = await sealed.read_served(session, config.agent)
        test = sealed.SealedTest(
            id=str(uuid.UUID(hex=history[:32])),
            run_id=config.run_id,
            agent=config.agent,
            epoch_id=epoch.id,
            index_in_epoch=index,
            alpha_t=level(index, epoch.accepted, alpha=rules.alpha, horizon=rules.epoch_tests),
            candidate_digest=candidate,
            incumbent_digest=incumbent,
            groups=choose_groups(pool, uses, served, rules, seed),
            seed=seed,
            config=rules,
        )
        await sealed.insert_test(session, config.project_id, test, config.task_set_version_id)
        return test

    async def _close(self, test_id: str, outcome: SealedOutcome) -> None:
        config = self.config
        async with self._db.transaction(config.project_id) as session:
            await self._lock(session)
            await self._epoch(session)
            test = await sealed.find_open_test(session, config.agent)
            if test is not None and test.id == test_id:
                await self._end(session, test, outcome)

    async def _withdraw(self, reason: str) -> None:
        config = self.config
        async with self._db.transaction(config.project_id) as session:
            await self._lock(session)
            test = await sealed.find_open_test(session, config.agent)
            if test is not None and test.run_id == config.run_id:
                await self._end(session, test, _abandoned(reason))

    async def _end(
        self, session: AsyncSession, test: sealed.SealedTest, outcome: SealedOutcome
    ) -> None:
        left = len(test.groups_left)
        used = min(left, outcome.groups_used)
        if outcome.reason == _WITHDRAWN:
            # How far it came is known from the journal.
            used = min(left, await effects.count_sealed_pairs(session, test.run_id, test.id))
        await sealed.close_test(session, test.id, outcome=outcome, used=used)
        await sealed.serve_groups(session, self.config.project_id, test, test.groups_left[:used])
        # The index counts once, with the first pair; a test taken up again has counted before.
        if used > 0 and test.groups_used == 0:
            await sealed.count_epoch(session, test.epoch_id)
        if outcome.verdict == "accepted":
            await sealed.count_acceptance(session, test.epoch_id)


_WITHDRAWN = "withdrawn"


def _abandoned(words: str) -> SealedOutcome:
    return SealedOutcome(verdict="undecided", reason=_WITHDRAWN, words=words)


def open_book(context: JobContext, facts: RunFacts, patience: StorePatience) -> PostgresBook:
    """The sealed book of a run; a test has the number of pairs that the quote promised."""
    config = BookConfig(
        project_id=context.project_id,
        run_id=context.run_id,
        job_id=context.job_id,
        token=context.fencing_token,
        agent=facts.agent,
        task_set=facts.spec.task_set,
        task_set_version_id=facts.task_set_version_id,
        acceptance=facts.spec.acceptance.model_copy(update={"max_pairs": facts.quote.sealed_pairs}),
        seed=facts.seed,
        patience=patience,
    )
    return PostgresBook(context.db, config)
