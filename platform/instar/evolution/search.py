"""Search: the phases of a run over its durable Lab, and the writing of its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution.book import open_book
from instar.evolution.context import JobContext
from instar.evolution.estimates import plain_words
from instar.evolution.facts import Ending, RunFacts
from instar.evolution.journal import PostgresJournal
from instar.evolution.learned import Find, keep_candidate
from instar.evolution.promotion import promote
from instar.evolution.quote import harness_digest
from instar.evolution.recording import RecordingLab, stored_rollout_id
from instar.evolution.retry import with_patience
from instar.store import effects, sealed
from instar.store.agents import AGENT
from instar.store.artifacts import ArtifactRef
from instar.store.audit import Author
from instar.store.evolution import change_progress, update_run
from instar.store.promotions import NewProposal, create_proposal, find_proposal, settle_proposal
from instar_core.base import JsonValue
from instar_core.candidates import Candidate
from instar_core.evolution import Event, Evidence, Prediction, Verdict
from instar_core.lab import Backend, Evolver
from instar_core.usage import Usage
from instar_evolvers.lab import DurableLab, LabConfig, open_lab

__all__ = ["Search", "SearchParts"]


@dataclass(frozen=True, slots=True)
class SearchParts:
    """What a run's phases work with; ``should_stop`` is asked before each effect."""

    context: JobContext
    facts: RunFacts
    evolver: Evolver
    backend: Backend
    journal: PostgresJournal
    should_stop: Callable[[], bool]


class Search:
    """The phases of one run; also writes its end."""

    def __init__(self, parts: SearchParts) -> None:
        self._context = parts.context
        self._facts = parts.facts
        self._journal = parts.journal
        self._evolver = parts.evolver
        facts, width = parts.facts, parts.context.settings.worker.rollout_concurrency
        self.lab: DurableLab = open_lab(
            parts.context.run_id,
            parts.backend,
            parts.journal,
            open_book(parts.context, parts.facts, parts.journal.config.patience),
            incumbent=facts.incumbent,
            seed=facts.seed,
            config=LabConfig(concurrency=width, sealed_lookahead=max(1, width // 2)),
        )
        self.lab.should_stop = parts.should_stop
        rules = facts.spec.acceptance
        self.recorder = RecordingLab(
            self.lab,
            parts.journal,
            facts.splits,
            incumbent=facts.incumbent.digest,
            keep_back=2 * rules.repeats * facts.quote.sealed_pairs,
            propose=self._propose,
        )
        self._proposal_id: str | None = None
        self._promotion_id: str | None = None

    async def run(self) -> Ending:
        """Baseline, search, sealed test, promotion."""
        await self._start()
        facts, recorder = self._facts, self.recorder
        await self._phase("baseline", "Measuring the present version on validation tasks.")
        tasks = facts.splits.validation[: facts.spec.validation_tasks]
        await recorder.rollouts(facts.incumbent, tasks)
        baseline = recorder.mean(facts.incumbent.digest)
        shown = "no score" if baseline is None else f"{baseline:.3f}"
        await self._phase("search", f"The present version scores {shown}; {self._name} searches.")
        best = await self._evolver.evolve(facts.incumbent, facts.splits, recorder)
        await recorder.write(**await self._measured())
        asked, usable = self.lab.asked["proposer"], self.lab.usable["proposer"]
        if asked and not usable:
            return Ending(
                "failed", f"The proposer was asked {asked} times and never gave anything usable."
            )
        if best.digest == facts.incumbent.digest:
            return Ending("no_improvement", self._nothing_found())
        return await self._put_forward(best)

    @property
    def _name(self) -> str:
        return self._facts.spec.evolver

    def _nothing_found(self) -> str:
        recorder = self.recorder
        present = recorder.mean(self._facts.incumbent.digest)
        seen = recorder.best()
        words = f"Nothing found: {self._name} keeps the present version"
        if present is not None:
            words += f", which scores {present:.3f} on validation"
        if seen is None:
            return f"{words}; no other candidate was measured there."
        return f"{words}; the best candidate seen there, {recorder.mean(seen):.3f}, is not better."

    async def _start(self) -> None:
        await self.lab.start()
        project = self._context.project_id

        async def load() -> None:
            async with self._context.db.transaction(project) as session:
                await self.recorder.load(session)

        await with_patience(load, self._journal.config.patience, "Reading stored rollouts")

    async def close(self) -> None:
        """Ends what still runs and writes the events that wait."""
        await self.lab.close()

    async def _phase(self, phase: str, words: str) -> None:
        self.lab.log(Event(kind="phase", message=words, data={"phase": phase}))
        run_id = self._context.run_id

        async def write(session: AsyncSession) -> None:
            await update_run(session, run_id, phase=phase, replayed=self.lab.replayed)

        await self._journal.write(write)

    async def _put_forward(self, best: Candidate) -> Ending:
        recorder, facts = self.recorder, self._facts
        evidence = Evidence(
            reason=best.note or f"Found by {self._name}.",
            validation_mean=recorder.mean(best.digest),
            incumbent_validation_mean=recorder.mean(facts.incumbent.digest),
        )
        verdict = await self._propose(best, evidence, None)
        words = await self._words_of(best, verdict)
        if verdict != "accepted":
            named = "" if verdict == "no_improvement" else f"{verdict}: "
            return Ending("no_improvement", f"{named}{words}", plain_words(verdict))
        return await self._promote(words)

    async def _propose(
        self, candidate: Candidate, because: Evidence, predicts: Prediction | None
    ) -> Verdict:
        """Keeps the candidate as an agent version, tests it, and settles the proposal."""
        facts = self._facts
        if candidate.digest == facts.incumbent.digest:
            return await self.lab.propose(candidate, because, predicts)
        await self._phase("sealed_test", "Testing the best candidate on sealed tasks.")
        project, run_id = self._context.project_id, self._context.run_id
        # What it was derived from is stored before a version points to it.
        await self.recorder.write()
        named = [stored_rollout_id(run_id, one) for one in because.rollout_ids]
        sources = dict.fromkeys([*named, *self.recorder.learned_from(candidate)])
        kept = because.model_copy(update={"rollout_ids": tuple(sources)})
        ref = ArtifactRef(project, AGENT, facts.agent)
        find = Find(run_id, facts.incumbent_version_id, kept, self.recorder.candidates)

        async def keep(session: AsyncSession) -> None:
            if await find_proposal(session, run_id, candidate.digest) is not None:
                return
            version = await keep_candidate(session, ref, candidate, find)
            new = NewProposal(
                run_id=run_id,
                agent=facts.agent,
                label=facts.label,
                candidate_digest=candidate.digest,
                agent_version_id=version.id,
                incumbent_version_id=facts.incumbent_version_id,
                evidence=kept.model_dump(mode="json"),
                rule="auto" if facts.rule == "auto" else "person",
            )
            await create_proposal(session, project, new)

        await self._journal.write(keep)
        verdict = await self.lab.propose(candidate, because, predicts)
        await self._settle(candidate, verdict)
        return verdict

    async def _settle(self, candidate: Candidate, verdict: Verdict) -> None:
        run_id, proposed = self._context.run_id, self.lab.proposals[-1]

        async def settle(session: AsyncSession) -> None:
            row = await find_proposal(session, run_id, candidate.digest)
            assert row is not None, "the proposal was written before its test began"
            self._proposal_id = row.id
            test = await sealed.read_test(session, proposed.test_id) if proposed.test_id else None
            outcome = None if test is None else test.outcome
            dumped = None if outcome is None else outcome.model_dump(mode="json", exclude={"state"})
            words = proposed.words if outcome is None else outcome.words
            await settle_proposal(
                session,
                row.id,
                verdict=verdict,
                outcome=dumped,
                sealed_test_id=None if test is None else test.id,
                state="waiting" if verdict == "accepted" else "rejected",
                decision_reason="" if verdict == "accepted" else words,
            )
            shown: dict[str, JsonValue] = {
                "verdict": verdict,
                "verdict_words": words,
                "proposal_id": row.id,
            }
            await change_progress(session, run_id, shown)

        await self._journal.write(settle)

    async def _words_of(self, candidate: Candidate, verdict: Verdict) -> str:
        proposed = self.lab.proposals[-1]
        test = None
        if proposed.test_id:

            async def read() -> sealed.SealedTest | None:
                async with self._context.db.transaction(self._context.project_id) as session:
                    return await sealed.read_test(session, proposed.test_id)

            test = await with_patience(read, self._journal.config.patience, "Reading the test")
        if test is not None and test.outcome is not None and test.outcome.words:
            return test.outcome.words
        return proposed.words or f"The sealed test of {candidate.digest[:12]} ended {verdict}."

    async def _promote(self, words: str) -> Ending:
        facts, context = self._facts, self._context
        assert self._proposal_id is not None, "an accepted test belongs to a proposal"
        proposal = self._proposal_id
        if facts.rule != "auto":
            return _accepted(words, "The proposal waits for a person.")
        await self._phase("promotion", "The project's rule promotes accepted proposals.")
        by = Author("run", context.run_id)

        async def attempt() -> str | None:
            async with context.db.transaction(context.project_id) as session:
                await effects.lock_run(
                    session, context.run_id, context.job_id, context.fencing_token
                )
                made = await promote(session, proposal, by, note="rule: auto")
                return None if made is None else made.id

        made = await with_patience(attempt, self._journal.config.patience, "Promoting")
        if made is None:
            return _accepted(
                words,
                f"The label {facts.label!r} has moved since, so the proposal is stale: test it "
                "again.",
            )
        self._promotion_id = made
        return _accepted(words, f"Promoted to {facts.label!r} by the project's rule.")

    async def _measured(self) -> dict[str, JsonValue]:
        """What a rollout of this run took so far, for the next quote."""
        totals = self._journal.run_totals()
        spent: Usage = self.lab.spent
        if not totals.rollouts:
            return {}
        facts = self._facts
        means: dict[str, JsonValue] = {}
        baseline = self.recorder.mean(facts.incumbent.digest)
        if baseline is not None:
            means[facts.incumbent.digest] = baseline
        return {
            "harness": harness_digest(facts.incumbent),
            "per_rollout": {
                "seconds": totals.wall_s / totals.rollouts,
                "tokens": totals.tokens / totals.rollouts,
                "cost_usd": totals.cost_usd / totals.rollouts,
                "cost_known": spent.cost_known,
                "means": means,
            },
        }


def _accepted(words: str, what_next: str) -> Ending:
    plain = f"{plain_words('accepted')} {what_next}"
    return Ending("succeeded", f"{words} {what_next}", plain)
