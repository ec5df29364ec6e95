"""Estimates: what a sealed test measured is for those who approve; others see the verdict alone.

Whoever may start runs could otherwise read, night after night, how far off the sealed tasks say
they are, and steer by it; the tasks would be sealed no longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from instar.evolution.schemas import ProposalView, RunEvent, RunStatus
from instar_core.base import JsonValue
from instar_core.evolution import Verdict

__all__ = ["PLAIN", "event_without", "plain_words", "proposal_without", "run_without"]

PLAIN = "plain"
"""Key in an event's data: its message as those see it who may not approve."""

_WORDS: Mapping[Verdict, str] = {
    "accepted": "The sealed test accepted the candidate.",
    "no_improvement": "The sealed test did not find the candidate better.",
    "undecided": "The sealed test ended undecided.",
    "blocked": "The candidate is blocked: it does worse where it must not.",
}


def plain_words(verdict: Verdict) -> str:
    """A verdict in words, without any number of the test."""
    return f"{_WORDS[verdict]} Approvers can read its estimate."


def run_without(run: RunStatus) -> RunStatus:
    """The status of a run without what its sealed test estimated."""
    if run.verdict is None:
        return run
    words = plain_words(run.verdict)
    reason = words if run.state in ("succeeded", "no_improvement") else run.reason
    return run.model_copy(update={"verdict_words": words, "reason": reason})


def event_without(event: RunEvent) -> RunEvent:
    """An event without what a sealed test estimated: only the last one has such words."""
    if event.kind != "ended":
        return event
    state = event.data.get("state")
    data: dict[str, JsonValue] = {"state": state}
    plain = event.data.get(PLAIN)
    # Events of earlier versions have no plain words: nothing of theirs is shown but the state.
    message = plain if isinstance(plain, str) else f"The run ended as {state}."
    return event.model_copy(update={"message": message, "data": data})


def proposal_without(proposal: ProposalView) -> ProposalView:
    """A proposal without its outcome; a note that a person wrote stays."""
    note = proposal.note
    if proposal.verdict is not None and not proposal.decided_by:
        note = plain_words(proposal.verdict)
    return proposal.model_copy(update={"outcome": None, "note": note})
