"""Bootstrap: demonstrations chosen from verified rollouts by Bayesian search over discrete choices.

After bootstrapped few-shot search as in MIPROv2 (Opsahl-Ong et al., arXiv 2406.11695, demonstration
sets only; instructions are left as they are): collect solved cases, then search which to show. It
needs no model that can reflect, so it works with models too small to write lessons.

1. *Pool.* The train tasks' reference actions are replayed through tools and verifier (the arm
   ``reference``), so a first demonstration is a verified one; without references, the agent's own
   successes are collected.
2. *Race.* The choices are: nearest or fixed retrieval, k, which fixed set, and in which order.
   Thompson sampling with shared strength decides which combinations get the next minibatch of race
   tasks. Race tasks share no group with the pool: otherwise nearest retrieval would find the task
   itself and look perfect.
3. *Final.* The best combinations and the seed run on the same validation tasks; the best mean wins,
   the seed when nothing is better.

Deviations: demonstrations are kept as data (a pool and a retrieval rule) and not as a frozen text;
the sampler is Thompson over a factored space and not a tree-structured Parzen estimator, because
with a hundred rollouts and some twenty combinations a Beta posterior is all the data can carry.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal, NamedTuple

from pydantic import Field

from instar_core.base import Frozen, canonical_json
from instar_core.candidates import Candidate, Demonstration, Demonstrations
from instar_core.errors import BudgetExhausted, UserError
from instar_core.evolution import Event
from instar_core.lab import Lab
from instar_core.tasks import Splits, Task
from instar_evolvers.strategies.allowance import Allowance
from instar_evolvers.strategies.components import find_component
from instar_evolvers.strategies.demonstrations import REFERENCE_ARM, verified
from instar_evolvers.strategies.thompson import FactorBandit
from instar_evolvers.strategies.tokens import estimate_tokens
from instar_evolvers.strategies.validation import Measured, compare

__all__ = ["Bootstrap", "BootstrapConfig", "Choice", "demonstrations_for"]

_LEAST_ROLLOUTS = 24
_REPEATS = 3


class BootstrapConfig(Frozen):
    """Settings of the demonstration search, stored with each run."""

    search_rollouts: int = Field(
        default=150, ge=1, description="rollouts of race and final comparison together"
    )
    pool_size: int = Field(default=64, ge=1, description="demonstrations collected at most")
    shown: tuple[int, ...] = Field(
        default=(1, 2, 3, 4, 6), min_length=1, description="values of k that are tried"
    )
    pass_mark: float = Field(default=1.0, gt=0.0, le=1.0, description="reward that verifies a case")
    race_tasks: int = Field(default=32, ge=2, description="train tasks kept out of the pool")
    minibatch: int = Field(default=6, ge=1, description="race tasks per combination and round")
    arms_per_round: int = Field(default=3, ge=1, description="combinations run side by side")
    finalists: int = Field(default=2, ge=1, description="combinations compared on validation")
    final_share: float = Field(
        default=0.5, gt=0.0, lt=1.0, description="share of the rollouts kept for validation"
    )


class Choice(NamedTuple):
    """One combination: how demonstrations are found, how many, which fixed set, in which order."""

    retrieval: Literal["fixed", "nearest"]
    k: int
    part: int
    order: int


class Bootstrap:
    """The evolver; see the module's text for the method.

    Args:
        config: Settings; the defaults fit a run of 150 rollouts.
    """

    name = "bootstrap"
    needs_proposer = False

    def __init__(self, config: BootstrapConfig | None = None) -> None:
        self.config = config or BootstrapConfig()

    def least_rollouts(self, data: Splits) -> int:
        """Search rollouts below which nothing can be told, however many tasks ``data`` has."""
        return _LEAST_ROLLOUTS

    def check(self, seed: Candidate, data: Splits) -> None:
        """Refuses what :meth:`evolve` would refuse, before anything is spent.

        Raises:
            UserError: As :meth:`evolve` does for agent and tasks.
        """
        find_component(seed, "demonstrations")
        count = len({task.group for task in data.train})
        if count < 2 or not data.validation:
            raise UserError(
                f"bootstrap got {count} train groups and {len(data.validation)} validation tasks.",
                remedy="It needs two train groups (one to show, one to try) and a validation task.",
            )

    async def evolve(self, seed: Candidate, data: Splits, lab: Lab) -> Candidate:
        """The seed with the demonstrations that did best on validation, or the seed itself.

        Raises:
            UserError: If the agent has no trainable demonstrations component, the tasks cannot be
                split into pool and race, or the budget is too small to tell anything.
        """
        self.check(seed, data)
        return await _Search(self.config, seed, data, lab).run()


class _Search:
    """One run: pool, race and final."""

    def __init__(self, config: BootstrapConfig, seed: Candidate, data: Splits, lab: Lab) -> None:
        self.config = config
        self.seed = seed
        self.data = data
        self.lab = lab
        self.component = find_component(seed, "demonstrations")
        self.allowance = Allowance(lab, config.search_rollouts)

    async def run(self) -> Candidate:
        """The best candidate on validation."""
        self.allowance.require(_LEAST_ROLLOUTS, "bootstrap")
        pool_tasks, race_tasks = self._divide()
        pool = await self._collect(pool_tasks)
        if not pool:
            self._say(
                "cold_start",
                "The agent never succeeded and no train task has reference actions that the "
                "verifier accepts, so there is nothing to show. Add reference actions to train "
                "tasks, or start with easier ones.",
            )
            return self.seed
        arms = self._arms(pool)
        if not arms:
            self._say("over_budget", "Not even one case fits the component's token budget.")
            return self.seed
        self._say("pool", f"{len(pool)} verified cases, {len(arms)} ways to show them.")
        bandit = FactorBandit([choice for choice, _ in arms])
        try:
            await self._race(bandit, arms, race_tasks)
            return await self._final(bandit, arms)
        except BudgetExhausted as error:
            self._say("budget", f"The search ends early, with the seed: {error}")
            return self.seed

    def _divide(self) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        """Train tasks for the pool and for the race; no group is in both."""
        groups: dict[str, list[Task]] = {}
        for task in self.data.train:
            groups.setdefault(task.group, []).append(task)
        names = list(groups)
        self.lab.rng("bootstrap.groups").shuffle(names)
        # Cases that can be shown without an attempt of the agent belong in the pool first.
        names.sort(key=lambda name: not any(_has_reference(task) for task in groups[name]))
        wanted = min(self.config.race_tasks, max(1, len(self.data.train) // 3))
        race: list[Task] = []
        while len(race) < wanted and len(names) > 1:
            race.extend(groups[names.pop()])
        pool = [task for name in names for task in groups[name]]
        self.lab.rng("bootstrap.pool").shuffle(pool)
        self.lab.rng("bootstrap.race").shuffle(race)
        return tuple(pool), tuple(race)

    async def _collect(self, tasks: Sequence[Task]) -> list[Demonstration]:
        """Verified cases: replayed references first, the agent's own successes where none are."""
        referenced = [task for task in tasks if _has_reference(task)][: self.config.pool_size]
        if referenced:
            # A replay asks no model: it is no attempt of the agent and costs no rollout.
            replays = await self.lab.rollouts(self.seed, referenced, arm=REFERENCE_ARM)
            found = verified(referenced, replays, self.config.pass_mark)
            if len(found) < len(referenced):
                lost = len(referenced) - len(found)
                self._say("unverified", f"{lost} references did not pass their own verifier.")
            if found:
                return found
        tried = tasks[: min(self.config.pool_size, max(1, self.allowance.left // 3))]
        attempts = await self.allowance.rollouts(self.seed, tried)
        return verified(tried, attempts, self.config.pass_mark)

    def _arms(self, pool: Sequence[Demonstration]) -> list[tuple[Choice, Candidate]]:
        """The distinct candidates that the choices give; by chance two orders may be the same."""
        arms: dict[str, tuple[Choice, Candidate]] = {}
        budget = self.seed.components[self.component].budget_tokens
        sizes = sorted(map(_tokens_of, pool), reverse=True)
        for choice in list_choices(self.config.shown, len(pool)):
            # Nearest retrieval may show any k of the pool, so the largest must fit.
            if budget is not None and sum(sizes[: choice.k]) > budget:
                continue
            rng = self.lab.rng(f"bootstrap.choice.{choice.part}.{choice.order}")
            content = demonstrations_for(choice, pool, rng).model_dump(mode="json")
            note = f"{choice.k} {choice.retrieval} demonstrations"
            candidate = self.seed.with_component(self.component, content, note=note)
            if candidate.digest != self.seed.digest:
                arms.setdefault(candidate.digest, (choice, candidate))
        return list(arms.values())

    async def _race(
        self,
        bandit: FactorBandit,
        arms: Sequence[tuple[Choice, Candidate]],
        tasks: Sequence[Task],
    ) -> None:
        """Rounds of minibatches for the combinations that Thompson sampling picks."""
        rng = self.lab.rng("bootstrap.thompson")
        reserve = int(self.allowance.left * self.config.final_share)
        size = min(self.config.minibatch, len(tasks))
        start = 0
        while self.allowance.left - reserve >= size:
            count = min(self.config.arms_per_round, (self.allowance.left - reserve) // size)
            # Before anything is known, every way of retrieval gets its chance.
            picked = bandit.choose(count, rng) if start else bandit.spread(count, rng)
            batch = [tasks[(start + step) % len(tasks)] for step in range(size)]
            start += size

            async def attempt(index: int, batch: Sequence[Task] = batch) -> list[float]:
                rollouts = await self.allowance.rollouts(arms[index][1], batch)
                return [rollout.reward for rollout in rollouts if rollout.score is not None]

            for index, rewards in zip(
                picked, await self.lab.gather("race", picked, attempt), strict=True
            ):
                bandit.update(index, rewards)

    async def _final(
        self, bandit: FactorBandit, arms: Sequence[tuple[Choice, Candidate]]
    ) -> Candidate:
        """Seed and finalists on the same validation tasks; the seed unless one is better."""
        tried = [index for index in range(len(arms)) if bandit.tries(index)]
        # Equal means: fewer demonstrations are cheaper to show.
        tried.sort(key=lambda index: (-bandit.mean(index), arms[index][0].k, index))
        finalists = [arms[index] for index in tried[: self.config.finalists]]
        compared = [self.seed, *(candidate for _, candidate in finalists)]
        tasks = list(self.data.validation)
        self.lab.rng("bootstrap.validation").shuffle(tasks)
        count = max(1, min(len(tasks), self.allowance.left // len(compared)))
        repeats = max(1, min(_REPEATS, self.allowance.left // (len(compared) * count)))
        seed, *rest = await self.lab.gather(
            "final", compared, lambda one: self._measure(one, tasks[:count], repeats)
        )
        for (choice, _), one in zip(finalists, rest, strict=True):
            self._say_choice(choice, one, seed)
        best = max(rest, key=lambda one: one.mean, default=seed)
        return best.candidate if best.mean > seed.mean else self.seed

    async def _measure(self, candidate: Candidate, tasks: Sequence[Task], n: int) -> Measured:
        return Measured(candidate, await self.allowance.rollouts(candidate, tasks, n=n))

    def _say_choice(self, choice: Choice, one: Measured, seed: Measured) -> None:
        difference, error = compare(one, seed)
        self.lab.log(
            Event(
                kind="bootstrap.finalist",
                message=(
                    f"{choice.k} {choice.retrieval} demonstrations: {one.mean:.2f} on "
                    f"{len(one.rewards)} validation tasks, seed {seed.mean:.2f} "
                    f"({difference:+.2f} ± {error:.2f})."
                ),
                data={
                    "retrieval": choice.retrieval,
                    "k": choice.k,
                    "validation_mean": one.mean,
                    "seed_validation_mean": seed.mean,
                    "tasks": len(one.rewards),
                },
            )
        )

    def _say(self, kind: str, message: str) -> None:
        self.lab.log(Event(kind=f"bootstrap.{kind}", message=message))


def list_choices(shown: Sequence[int], pool: int) -> list[Choice]:
    """All combinations that a pool of this size allows.

    Nearest retrieval looks in the whole pool, and its order is given by similarity. Fixed retrieval
    shows one of two sets, the first of them in two orders where order can differ.
    """
    choices = []
    for k in sorted({min(k, pool) for k in shown if k > 0}):
        choices.append(Choice("nearest", k, 0, 0))
        choices.append(Choice("fixed", k, 0, 0))
        if k > 1:
            choices.append(Choice("fixed", k, 0, 1))
        if pool > k:
            choices.append(Choice("fixed", k, 1, 0))
    return choices


def demonstrations_for(
    choice: Choice, pool: Sequence[Demonstration], rng: Random
) -> Demonstrations:
    """The component's content that a choice stands for.

    Args:
        choice: What to show.
        pool: Verified cases.
        rng: A stream of the choice's own part and order; fixed sets take cases with different
            actions before a second case with the same ones, so that no kind is left out.
    """
    cases = list(pool)
    if choice.retrieval == "nearest":
        return Demonstrations(pool=tuple(cases), retrieval="nearest", k=choice.k)
    if choice.part:
        cases.reverse()
    picked = _diverse(cases, choice.k)
    if choice.order:
        rng.shuffle(picked)
    return Demonstrations(
        pool=tuple(picked),
        retrieval="fixed",
        k=len(picked),
        order=tuple(case.id for case in picked),
    )


def _diverse(cases: Sequence[Demonstration], count: int) -> list[Demonstration]:
    """The first case of each kind of solution, then the second of each, and so on."""
    seen: dict[str, int] = {}
    ranked = []
    for position, case in enumerate(cases):
        kind = f"{[(call.name, sorted(call.arguments.items())) for call in case.actions]}"
        kind = f"{kind}|{case.answer}"
        ranked.append((seen.get(kind, 0), position))
        seen[kind] = seen.get(kind, 0) + 1
    return [cases[position] for _, position in sorted(ranked)[:count]]


def _tokens_of(case: Demonstration) -> int:
    actions = [call.model_dump(mode="json") for call in case.actions]
    shown = canonical_json(actions).decode("utf-8")
    return estimate_tokens(f"{case.input} {shown} {case.answer or ''}")


def _has_reference(task: Task) -> bool:
    return bool(task.reference_actions) or task.reference_answer is not None
