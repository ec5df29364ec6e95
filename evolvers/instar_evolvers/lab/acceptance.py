"""The sealed test: candidate against incumbent on tasks that neither the search nor its author saw.

Both arms run fresh, pair by pair in the ticket's random order, with a coin deciding which arm goes
first; the statistic is fed in that same order, whatever finishes first. A pair in which
infrastructure failed is run again as a whole, then dropped. The verdict is all that the evolver
learns; the outcome goes to the book. A crash in the middle resumes to the same verdict: every
rollout is recorded, and so is the outcome before the book learns of it.

Statistics: :mod:`instar_core.statistics.sealed`; rules: ``acceptance-stats.md`` §1, §6 and §10.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, NamedTuple, TypeVar, cast

from instar_core.base import JsonValue, content_hash
from instar_core.candidates import Candidate
from instar_core.errors import BudgetExhausted, ReplayDiverged, RunCancelled, UserError
from instar_core.evolution import SealedOutcome, Verdict
from instar_core.lab import EffectStart, RolloutRequest, SealedBook, SealedTicket
from instar_core.rollouts import Rollout
from instar_core.statistics.sealed import SealedDecision
from instar_core.tasks import Task
from instar_core.usage import ZERO, Amount, Usage
from instar_evolvers.lab.effects import EffectDoor

__all__ = ["PairScore", "SealedRun", "Told", "run_sealed_test", "sealed_draw"]

T = TypeVar("T")
Arm = Literal["candidate", "incumbent"]
_Fed = tuple[float | None, float | None, str]
RunRollout = Callable[[str, RolloutRequest], Awaitable[Rollout]]


@dataclass(frozen=True, slots=True)
class SealedRun:
    """What a sealed test runs on.

    Attributes:
        door: The Lab's effects.
        book: Where tests are opened and closed.
        key: Effect key of the whole test.
        rollout: Runs one rollout under ``<key>/<given name>``; no score means infrastructure
            failed.
        lookahead: Pairs in flight at once.
        retries: Times a pair is run again after an infrastructure failure.
        wait_s: Wait before a pair's first retry; doubles with each one.
    """

    door: EffectDoor
    book: SealedBook
    key: str
    rollout: RunRollout
    lookahead: int = 4
    retries: int = 2
    wait_s: float = 0.0


class Told(NamedTuple):
    """What the Lab learns from a test: one word for the evolver, and what it cost."""

    verdict: Verdict
    test_id: str
    words: str
    rollouts: int
    usage: Usage


class PairScore(NamedTuple):
    """One pair: each arm's mean score, ``None`` for the arm whose infrastructure failed for
    good."""

    candidate: float | None
    incumbent: float | None
    rollouts: int
    usage: Usage


def sealed_draw(seed: int, attempt: int, repeat: int) -> int:
    """The draw index of a sealed rollout: far from the search's 0, 1, 2 …, and new in every test.

    Acceptance draws are always fresh. The request names its test as well; the number alone already
    keeps a backend that looks at nothing else (a seed sent to a provider) from repeating a draw. It
    comes from the ticket's seed and not from the test's id, so that the same history draws the
    same.
    """
    digest = hashlib.sha256(f"sealed/{seed}".encode()).digest()
    return (1 << 20) + int.from_bytes(digest[:4], "big") % (1 << 30) + attempt * 1009 + repeat


async def run_sealed_test(run: SealedRun, candidate: Candidate, incumbent: Candidate) -> Told:
    """Runs (or resumes, or remembers) the sealed test under ``run.key``.

    Args:
        run: What it runs on.
        candidate: The version put forward.
        incumbent: The version it has to beat.

    Returns:
        The verdict; ``blocked`` with words when the book cannot open a test.

    Raises:
        RunCancelled: After closing the test as undecided.
        ReplayDiverged: If the book now gives another ticket than the one that was begun.
    """
    door, content = run.door, content_hash([candidate.digest, incumbent.digest])
    record = door.recorded(run.key, "sealed", content)
    if record is not None:
        return _told(cast(dict[str, Any], record.result))
    start = EffectStart.model_construct(
        key=run.key, kind="sealed", content=content, reserve=Amount(), request=None
    )
    await door.begin(start)
    done = door.recorded(f"{run.key}/outcome", "sealed", content)
    if done is None:
        try:
            ticket = await _at_the_book(door, run.book.open_test(candidate, incumbent))
        except UserError as error:
            result = _result("blocked", "", 0, ZERO, words=str(error))
            await door.finish(start, result, ZERO)
            return _told(result)
        await _same_ticket(run, ticket, content)
        test = _Test(run, ticket, candidate, incumbent)
        found = await test.decide()

        async def outcome_of() -> object:
            return found

        found = await door.simple(f"{run.key}/outcome", "sealed", content, outcome_of)
    else:
        found = cast(dict[str, Any], done.result)
        ticket = SealedTicket(
            test_id=found["test_id"], alpha_t=found["alpha_t"], index_in_epoch=1, groups=(), seed=0
        )
    outcome = SealedOutcome.model_validate(found["outcome"])
    await _at_the_book(door, run.book.close(ticket, outcome, candidate))
    used = Usage.model_validate(found["usage"])
    result = _result(outcome.verdict, ticket.test_id, found["rollouts"], used)
    await door.finish(start, result, ZERO)
    return _told(result)


async def _at_the_book(door: EffectDoor, asked: Awaitable[T]) -> T:
    """What the book answers; anything but a plain refusal ends this Lab."""
    try:
        return await asked
    except UserError:
        raise
    except BaseException as error:
        door.fail(error)
        raise


def _result(
    verdict: Verdict, test_id: str, rollouts: int, usage: Usage, *, words: str = ""
) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "test_id": test_id,
        "words": words,
        "rollouts": rollouts,
        "usage": usage.model_dump(mode="json"),
    }


def _told(result: dict[str, Any]) -> Told:
    return Told(
        cast(Verdict, result["verdict"]),
        str(result["test_id"]),
        str(result["words"]),
        int(result["rollouts"]),
        Usage.model_validate(result["usage"]),
    )


async def _same_ticket(run: SealedRun, ticket: SealedTicket, content: str) -> None:
    """Makes sure that a resumed test goes on with the ticket that it began with."""
    groups = [[task.content_digest for task in group] for group in ticket.groups]
    seen: dict[str, JsonValue] = {
        "test_id": ticket.test_id,
        "alpha_t": ticket.alpha_t,
        "seed": ticket.seed,
        "groups": content_hash(groups),
        "state": content_hash(ticket.state),
    }

    async def perform() -> object:
        return seen

    recorded = await run.door.simple(f"{run.key}/ticket", "sealed", content, perform)
    if recorded != seen:
        changed = sorted(name for name in seen if seen[name] != recorded.get(name))
        error = ReplayDiverged(
            f"The sealed test {recorded.get('test_id')!r} was begun with another ticket "
            f"(different: {', '.join(changed)}).",
            remedy="A test cannot change in its middle; start a new run.",
        )
        run.door.fail(error)
        raise error


class _Test:
    """One sealed test under way."""

    def __init__(
        self, run: SealedRun, ticket: SealedTicket, candidate: Candidate, incumbent: Candidate
    ) -> None:
        self._run = run
        self._ticket = ticket
        self._arms: dict[Arm, Candidate] = {"candidate": candidate, "incumbent": incumbent}
        self._config = ticket.config
        self._begun = 0
        self._over = False
        self._rollouts = 0
        self._usage = ZERO
        earlier = cast(dict[str, Any], ticket.state or {}).get("pairs", [])
        self._pairs: list[_Fed] = [(c, i, s) for c, i, s in earlier]
        slices = [s for _, _, s in self._pairs] + [group[0].slice for group in ticket.groups]
        self._decision = SealedDecision(ticket.config, ticket.alpha_t, slices=slices)
        for mine, theirs, name in self._pairs:
            # Fewer groups may be left than the first time, so it may stop earlier, never later.
            if self._decision.feed(mine, theirs, slice_name=name) == "stop":
                break

    async def decide(self) -> dict[str, Any]:
        """Runs pairs until the statistic stops, the groups end or the budget does."""
        interrupted = ""
        try:
            await self._run_pairs()
        except BudgetExhausted as error:
            interrupted = str(error)
        except RunCancelled as error:
            outcome = self._outcome("cancelled", str(error))
            closing = self._run.book.close(self._ticket, outcome, self._arms["candidate"])
            await _at_the_book(self._run.door, closing)
            raise
        if interrupted:
            outcome = self._outcome("budget", f"The budget ended the test early: {interrupted}")
        else:
            outcome = self._outcome("", "")
        return {
            "test_id": self._ticket.test_id,
            "alpha_t": self._ticket.alpha_t,
            "outcome": outcome.model_dump(mode="json"),
            "rollouts": self._rollouts,
            "usage": self._usage.model_dump(mode="json"),
        }

    def _outcome(self, interruption: str, words: str) -> SealedOutcome:
        outcome = self._decision.outcome()
        update: dict[str, Any] = {
            "groups_used": self._begun,
            "state": {"pairs": [list(pair) for pair in self._pairs]},
        }
        if interruption and self._decision.stop is None:
            update |= {"reason": interruption, "words": f"{words} {outcome.words}".strip()}
        return outcome.model_copy(update=update)

    async def _run_pairs(self) -> None:
        """Keeps a few pairs in flight and feeds them to the statistic in the recorded order."""
        limit = len(self._ticket.groups)
        window: deque[asyncio.Task[PairScore]] = deque()
        if self._decision.stop is not None:
            return
        try:
            for index in range(limit):
                if self._run.lookahead == 1:
                    self._begun = index + 1
                    pair = await self._pair(index)
                else:
                    ahead = min(limit, index + self._run.lookahead, index + self._decision.left)
                    while self._begun < ahead:
                        window.append(asyncio.create_task(self._pair(self._begun)))
                        self._begun += 1
                    pair = await window.popleft()
                if self._feed(index, pair) == "stop":
                    return
        except (BudgetExhausted, RunCancelled):
            raise
        except BaseException:
            for task in window:
                task.cancel()
            raise
        finally:
            # What is in flight ends and is recorded; nothing new starts, and nothing of it is read.
            self._over = True
            await asyncio.gather(*window, return_exceptions=True)
            self._run.door.check_fatal()

    def _feed(self, index: int, pair: PairScore) -> str:
        name = self._ticket.groups[index][0].slice
        # Missing pairs are kept too: a test that goes on later must not forget them.
        self._pairs.append((pair.candidate, pair.incumbent, name))
        self._rollouts += pair.rollouts
        self._usage = self._usage + pair.usage
        return self._decision.feed(pair.candidate, pair.incumbent, slice_name=name)

    async def _pair(self, index: int) -> PairScore:
        """Both arms on one group, run again as a whole while infrastructure fails."""
        rng = Random(f"{self._ticket.seed}/{index}")
        group = list(self._ticket.groups[index])
        rng.shuffle(group)
        tasks = [group[r % len(group)] for r in range(self._config.repeats)]
        order: list[Arm] = ["candidate", "incumbent"]
        rng.shuffle(order)
        pair = await self._try_pair(index, 0, tasks, order)
        for attempt in range(1, self._run.retries + 1):
            if self._over or (pair.candidate is not None and pair.incumbent is not None):
                break
            await asyncio.sleep(self._run.wait_s * 2 ** (attempt - 1))
            again = await self._try_pair(index, attempt, tasks, order)
            pair = again._replace(
                rollouts=pair.rollouts + again.rollouts, usage=pair.usage + again.usage
            )
        return pair

    async def _try_pair(
        self, index: int, attempt: int, tasks: list[Task], order: list[Arm]
    ) -> PairScore:
        """Each task once per arm, the arms taking turns; ends at the first failure."""
        sums: dict[Arm, float] = {"candidate": 0.0, "incumbent": 0.0}
        rollouts, usage = 0, ZERO
        for repeat, task in enumerate(tasks):
            for arm in order:
                if self._over:
                    return PairScore(None, None, rollouts, usage)
                rollout = await self._roll(index, attempt, arm, repeat, task)
                rollouts += 1
                usage = rollout.usage if usage is ZERO else usage + rollout.usage
                if rollout.score is None:
                    # The other arm's 0 is no score: it only says which one is missing.
                    if arm == "candidate":
                        return PairScore(None, 0.0, rollouts, usage)
                    return PairScore(0.0, None, rollouts, usage)
                sums[arm] += rollout.score.reward
        n = len(tasks)
        return PairScore(sums["candidate"] / n, sums["incumbent"] / n, rollouts, usage)

    async def _roll(self, index: int, attempt: int, arm: Arm, repeat: int, task: Task) -> Rollout:
        request = RolloutRequest(
            candidate=self._arms[arm],
            task=task,
            draw=sealed_draw(self._ticket.seed, attempt, repeat),
            arm=arm,
            sealed_test=self._ticket.test_id,
        )
        return await self._run.rollout(f"p{index}.{attempt}.{arm}.{repeat}", request)
