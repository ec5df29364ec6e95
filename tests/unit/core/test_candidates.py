"""Candidates: the digest is that of what runs."""

from __future__ import annotations

from instar_core.candidates import Candidate, Component, Harness


def test_a_changed_copy_has_a_digest_of_its_own() -> None:
    part = Component(kind="instructions", content="one")
    candidate = Candidate(components={"i": part}, harness=Harness(model="m"))
    before = candidate.digest
    changed = candidate.model_copy(update={"harness": Harness(model="other")})
    assert changed.digest != before
    assert candidate.digest == before
