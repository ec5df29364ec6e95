"""Training-Free GRPO: lessons learned from the contrast between attempts at the same task.

Cai et al., "Training-Free Group Relative Policy Optimization" (arXiv 2510.08191), main method: for
each task a group of n rollouts; each is summarised; the group's *semantic advantage* (what sets
good attempts apart from bad ones) becomes operations on a pool of lessons; a batch's operations are
consolidated. The weights stay as they are.

Deviations, each for a reason:

* A group without contrast in which every attempt failed is taught by the verifier's feedback; one
  in which every attempt passed costs nothing more. The paper drops both.
* Lessons have stable ids and are never renumbered; an unknown id is an error shown to the model.
* Lessons stand in the system prompt, in practice as in production: what is tested is what ships.
* **A change of the lessons is kept only after it has won a paired trial**: fresh rollouts with and
  without it on the tasks that it speaks about, judged by an e-process at 50 : 1, so that of the
  changes that are no gain at most one in fifty is kept. The paper keeps every change.
* The best candidate on validation is returned, the seed when nothing is better. The paper returns
  the last.
* Batches are drawn anew each epoch; a token budget and a number of lessons are enforced before any
  rollout is spent on a change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import Field

from instar_core.base import Frozen, short
from instar_core.candidates import Candidate, Lessons
from instar_core.errors import BudgetExhausted, ParseFailure, UserError
from instar_core.evolution import Event
from instar_core.lab import Lab
from instar_core.rollouts import Rollout
from instar_core.tasks import Splits, Task
from instar_evolvers.strategies.allowance import Allowance
from instar_evolvers.strategies.batches import shuffled_batches
from instar_evolvers.strategies.components import find_component
from instar_evolvers.strategies.grpo_prompts import (
    advantage_messages,
    consolidation_messages,
    read_findings,
    read_summary,
    summary_messages,
    update_messages,
)
from instar_evolvers.strategies.homes import HomeFinder
from instar_evolvers.strategies.playbook import (
    Operation,
    apply_operation,
    check_operations,
    lesson_tokens,
    parse_operations,
)
from instar_evolvers.strategies.replies import json_array_in
from instar_evolvers.strategies.trials import Trial, TrialConfig
from instar_evolvers.strategies.validation import Measured, compare

__all__ = ["Group", "TrainingFreeGRPO", "TrainingFreeGRPOConfig"]


class TrainingFreeGRPOConfig(Frozen):
    """Settings of Training-Free GRPO, stored with each run."""

    epochs: int = Field(default=3, ge=1, description="passes over the train tasks")
    batch_size: int = Field(default=16, ge=1, description="tasks per step")
    group_size: int = Field(default=4, ge=2, description="rollouts per task (n)")
    lessons_per_group: int = Field(default=2, ge=1, description="findings asked of a group")
    max_lessons: int = Field(default=24, ge=1, description="lessons in the playbook at most")
    token_budget: int = Field(default=1200, ge=1, description="tokens of all lessons at most")
    pass_mark: float = Field(
        default=1.0, gt=0.0, le=1.0, description="reward that counts as passed"
    )
    home_tasks: int = Field(default=12, ge=1, description="tasks on which a change is tried")
    trials_per_change: int = Field(default=2, ge=1, description="trials when proposed again")
    trial: TrialConfig = TrialConfig()
    search_rollouts: int | None = Field(
        default=None, ge=1, description="rollouts of the search; None leaves the run's budget alone"
    )


class Group(NamedTuple):
    """Rollouts of one task under one candidate; those without a score are left out."""

    task: Task
    rollouts: tuple[Rollout, ...]

    @property
    def mixed(self) -> bool:
        """Whether some attempts did better than others, so that there is something to contrast."""
        rewards = [rollout.reward for rollout in self.rollouts]
        return bool(rewards) and max(rewards) > min(rewards)

    def passed(self, mark: float) -> bool:
        """Whether every attempt reached the mark (an empty group teaches nothing either)."""
        return all(rollout.reward >= mark for rollout in self.rollouts)


class TrainingFreeGRPO:
    """The evolver; see the module's text for the method.

    Args:
        config: Settings; the defaults are for a few hundred train tasks and a real model.
    """

    name = "tf_grpo"
    needs_proposer = True

    def __init__(self, config: TrainingFreeGRPOConfig | None = None) -> None:
        self.config = config or TrainingFreeGRPOConfig()

    def least_rollouts(self, data: Splits) -> int:
        """Search rollouts below which nothing can be told: two measures, one group, one look."""
        look = 2 * self.config.trial.pairs_per_look
        return 2 * len(data.validation) + self.config.group_size + look

    def check(self, seed: Candidate, data: Splits) -> None:
        """Refuses what :meth:`evolve` would refuse, before anything is spent.

        Raises:
            UserError: As :meth:`evolve` does for agent and tasks.
        """
        find_component(seed, "lessons")
        if not data.train or not data.validation:
            raise UserError(
                f"tf_grpo got {len(data.train)} train and {len(data.validation)} validation tasks.",
                remedy="It needs at least one of each; add tasks to the task set.",
            )

    async def evolve(self, seed: Candidate, data: Splits, lab: Lab) -> Candidate:
        """The best candidate on validation, the seed itself when no lesson made it better.

        Raises:
            UserError: If the agent has no trainable lessons component, a split is empty, or the
                budget is too small to tell anything.
            ParseFailure: If the proposer never produced anything usable.
        """
        self.check(seed, data)
        return await _Practice(self.config, seed, data, lab).run(self.least_rollouts(data))


class _Practice:
    """One run of the method: the lessons kept so far, and what was learned about changes."""

    def __init__(
        self, config: TrainingFreeGRPOConfig, seed: Candidate, data: Splits, lab: Lab
    ) -> None:
        self.config = config
        self.seed = seed
        self.data = data
        self.lab = lab
        self.component = find_component(seed, "lessons")
        self.current = seed
        self.allowance = Allowance(lab, config.search_rollouts)
        self.homes = HomeFinder(lab, data.train, config.home_tasks)
        own = seed.components[self.component].budget_tokens
        self.token_budget = min(config.token_budget, own or config.token_budget)
        self.trials: dict[str, Trial] = {}
        self.rejected: dict[str, None] = {}
        self.usable_replies = 0
        self.over = False

    @property
    def lessons(self) -> Lessons:
        """The lessons of the current candidate."""
        return Lessons.model_validate(self.current.components[self.component].content)

    async def run(self, needed: int) -> Candidate:
        """Practises until the epochs or the budget are used up; the best on validation."""
        self.allowance.require(needed, "tf_grpo")
        first = best = await self._measure(self.seed)
        if min(first.rewards.values()) >= self.config.pass_mark:
            self._say("all_passed", "Every validation task passes already: nothing to learn here.")
            return self.seed
        try:
            for epoch in range(self.config.epochs):
                before = self.current
                await self._epoch(epoch)
                if self.current is not before:
                    best = await self._better_of(best)
                if self.over:
                    break
        except BudgetExhausted as error:
            self._say("budget", f"The search ends early: {error}")
        if best.mean <= first.mean:
            self._say("nothing_better", "No change of the lessons did better on validation.")
            return self.seed
        return best.candidate

    async def _epoch(self, epoch: int) -> None:
        rng = self.lab.rng(f"tf_grpo.batches.{epoch}")
        for step, batch in enumerate(
            shuffled_batches(self.data.train, self.config.batch_size, rng)
        ):
            batch = batch[: max(0, self._spare() // self.config.group_size)]
            if not batch:
                self.over = True
                return
            groups = await self._practise(batch)
            if epoch == 0 and step == 0 and not self._speak_of_start(groups):
                self.over = True
                return
            await self._learn(groups)
            if self.over:
                return

    def _spare(self) -> int:
        """Rollouts that may go to practice and trials; one validation pass is always kept back."""
        return self.allowance.left - len(self.data.validation)

    async def _practise(self, batch: Sequence[Task]) -> list[Group]:
        """A group of fresh rollouts for each task, under the lessons kept so far."""
        size = self.config.group_size
        rollouts = await self.allowance.rollouts(self.current, batch, n=size)
        return [
            Group(
                task,
                tuple(
                    rollout
                    for rollout in rollouts[index * size : (index + 1) * size]
                    if rollout.score is not None
                ),
            )
            for index, task in enumerate(batch)
        ]

    def _speak_of_start(self, groups: Sequence[Group]) -> bool:
        """Says at once when the first batch has no contrast; whether going on makes sense."""
        scored = [rollout for group in groups for rollout in group.rollouts]
        rewards = [rollout.reward for rollout in scored]
        if not scored or max(rewards) > min(rewards):
            return True
        if min(rewards) >= self.config.pass_mark:
            self._say("all_passed", "Every attempt of the first batch passed: little to learn.")
            return True
        heard = any(rollout.score and rollout.score.feedback for rollout in scored)
        self._say(
            "all_failed",
            f"All {len(scored)} attempts of the first batch failed, so there is nothing to "
            "contrast. "
            + (
                "Lessons are drawn from the verifier's feedback alone. If tasks carry reference "
                "actions, run bootstrap first and start from its result."
                if heard
                else "The verifier gives no feedback either, so nothing can be learned: run "
                "bootstrap on tasks with reference actions, or use easier tasks."
            ),
        )
        return heard

    async def _learn(self, groups: Sequence[Group]) -> None:
        """Turns a batch's groups into changes, and keeps those that win their trial."""
        teaching = [group for group in groups if self._teaches(group)]
        if not teaching:
            return
        answers = await self.lab.gather("groups", teaching, self._operations_of)
        failures = [answer for answer in answers if isinstance(answer, ParseFailure)]
        found = [answer for answer in answers if not isinstance(answer, ParseFailure)]
        self.usable_replies += len(found)
        for failure in failures:
            self._say("group_lost", f"A group taught nothing: {short(str(failure), 300)}")
        if failures and self.usable_replies == 0:
            raise failures[0]
        operations = [operation for answer in found for operation in answer]
        for operation in await self._consolidate(operations, len(found)):
            await self._try(operation)
            if self.over:
                return

    def _teaches(self, group: Group) -> bool:
        if group.mixed:
            return True
        heard = any(rollout.score and rollout.score.feedback for rollout in group.rollouts)
        return heard and not group.passed(self.config.pass_mark)

    async def _operations_of(self, group: Group) -> tuple[Operation, ...] | ParseFailure:
        """The operations that one group asks for; a failure is data, so others still count."""
        lessons, limit = self.lessons, self.config.lessons_per_group
        try:
            accounts = await self._accounts(group)
            findings = await self.lab.ask(
                "proposer",
                advantage_messages(group.task, accounts, lessons, limit),
                read_findings,
            )
            if not findings:
                return ()
            return await self.lab.ask(
                "proposer",
                update_messages(lessons, findings[:limit], list(self.rejected)),
                self._read_operations,
            )
        except ParseFailure as failure:
            return failure

    async def _accounts(self, group: Group) -> list[tuple[float, str]]:
        """Reward and account of each attempt: a summary, or the feedback where nothing passed."""
        if not group.mixed:
            return [(r.reward, r.score.feedback if r.score else "") for r in group.rollouts]

        async def summarise(rollout: Rollout) -> str:
            messages = summary_messages(group.task, rollout, self.lessons)
            return await self.lab.ask("proposer", messages, read_summary)

        texts = await self.lab.gather("summaries", group.rollouts, summarise)
        return [(r.reward, text) for r, text in zip(group.rollouts, texts, strict=True)]

    def _read_operations(self, reply: str) -> tuple[Operation, ...]:
        operations = parse_operations(json_array_in(reply))
        check_operations(operations, self.lessons)
        return operations

    async def _consolidate(
        self, operations: Sequence[Operation], groups: int
    ) -> tuple[Operation, ...]:
        """One list of operations out of all groups', those asked for most often first."""
        support = Counter(operations)
        distinct = tuple(support)
        if groups > 1 and len(distinct) > 1:
            try:
                distinct = await self.lab.ask(
                    "proposer",
                    consolidation_messages(
                        self.lessons,
                        operations,
                        max_lessons=self.config.max_lessons,
                        token_budget=self.token_budget,
                    ),
                    self._read_operations,
                )
            except ParseFailure as failure:
                # Losing a batch's learning to one bad reply is a defect of the original; equal
                # operations are merged without a model instead.
                self._say("not_consolidated", f"Groups' operations are used as they are: {failure}")
        return tuple(sorted(dict.fromkeys(distinct), key=lambda one: -support[one]))

    async def _try(self, operation: Operation) -> None:
        """Gives one change its trial and keeps it when it wins."""
        lessons = self.lessons
        try:
            changed = apply_operation(lessons, operation)
        except ValueError as error:
            self._say("skipped", f"{operation.op} was skipped: {error}")
            return
        known = {entry.text for entry in lessons.entries}
        if changed == lessons or (operation.op == "ADD" and operation.text in known):
            return
        if not self._within_limits(changed, operation):
            return
        trial = self.trials.setdefault(
            _key(operation),
            Trial(self.config.trial, shrinks=operation.op in ("DELETE", "MERGE")),
        )
        if trial.runs >= self.config.trials_per_change:
            return
        if self._spare() < 2 * self.config.trial.pairs_per_look:
            self.over = True
            return
        candidate = self.current.with_component(
            self.component, changed.model_dump(mode="json"), note=f"{operation.op} {operation.text}"
        )
        tasks = await self.homes.home_of(operation.text or _text_of(lessons, operation))
        limited = Allowance(self.lab, self._spare())
        won = await trial.run(self.lab, limited, (candidate, self.current), tasks)
        self.allowance.spent += limited.spent
        self._report(operation, trial, won)
        if won:
            self.current = candidate
            self.rejected.pop(operation.text, None)
        elif operation.text:
            self.rejected[operation.text] = None

    def _within_limits(self, changed: Lessons, operation: Operation) -> bool:
        count, tokens = len(changed.entries), lesson_tokens(changed)
        if count <= self.config.max_lessons and tokens <= self.token_budget:
            return True
        self._say(
            "over_budget",
            f"{operation.op} would give {count} lessons of {tokens} tokens; "
            f"{self.config.max_lessons} lessons of {self.token_budget} tokens are allowed.",
        )
        return False

    async def _measure(self, candidate: Candidate) -> Measured:
        return Measured(candidate, await self.allowance.rollouts(candidate, self.data.validation))

    async def _better_of(self, best: Measured) -> Measured:
        """The current candidate, unless validation shows it behind the best so far.

        Each of its changes has won a trial, so a difference within one standard error is noise and
        does not throw them away.
        """
        new = await self._measure(self.current)
        difference, error = compare(new, best)
        self._say(
            "validated",
            f"Validation {new.mean:.2f} with {len(self.lessons.entries)} lessons "
            f"(best before {best.mean:.2f}).",
        )
        return new if difference > -error else best

    def _report(self, operation: Operation, trial: Trial, won: bool) -> None:
        self.lab.log(
            Event(
                kind="tf_grpo.trial",
                message=(
                    f"{'Kept' if won else 'Not kept'}: {operation.op} "
                    f"{short(operation.text or ' '.join(operation.ids), 160)!r} "
                    f"({trial.mean:+.2f} over {trial.pairs} pairs)."
                ),
                data={
                    "op": operation.op,
                    "ids": list(operation.ids),
                    "text": operation.text,
                    "kept": won,
                    "pairs": trial.pairs,
                    "mean_difference": trial.mean,
                },
            )
        )

    def _say(self, kind: str, message: str) -> None:
        self.lab.log(Event(kind=f"tf_grpo.{kind}", message=message))


def _key(operation: Operation) -> str:
    return f"{operation.op}|{'|'.join(operation.ids)}|{operation.text}"


def _text_of(lessons: Lessons, operation: Operation) -> str:
    """The words of the lessons that an operation without a text of its own touches."""
    return " ".join(entry.text for entry in lessons.entries if entry.id in operation.ids)
