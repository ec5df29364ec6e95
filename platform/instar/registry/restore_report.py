"""Report of a restore: what it did, kept with the run, so that it can be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from instar_core.base import Frozen, JsonValue

__all__ = ["BuiltOn", "LabelBack", "RestoreReport", "StateBack", "VersionBack", "together"]


class LabelBack(Frozen):
    """A label that the run's work moved: ``left`` is where it put it, ``to`` where it was before.

    ``restored``: it goes (went) back; ``unchanged``: it is there already; ``moved_since``: somebody
    moved it on, and it stays unless the restore is forced; ``blocked``: what it named is archived.
    """

    kind: str
    name: str
    label: str
    left: int | None
    now: int | None
    to: int | None
    state: Literal["restored", "unchanged", "moved_since", "blocked"]
    by: str = ""


class VersionBack(Frozen):
    """A version or artifact (``number`` 0) of the run: ``archived``, or ``kept`` and why."""

    kind: str
    name: str
    number: int
    state: Literal["archived", "already", "kept"]
    why: str = ""


class StateBack(Frozen):
    """A proposal or promotion whose state changes, and the state that it had."""

    id: str
    before: str
    after: str
    why: str = ""


class BuiltOn(Frozen):
    """A version that came later and goes on a version of the run; it stays as it is."""

    kind: str
    name: str
    number: int
    origin: str
    on_kind: str
    on_name: str
    on_number: int


class RestoreReport(Frozen):
    """What a restore did, or (``dry_run``) would do. ``changed`` is false when nothing is left."""

    run_id: str
    dry_run: bool
    changed: bool = False
    labels: tuple[LabelBack, ...] = ()
    promotions: tuple[StateBack, ...] = ()
    proposals: tuple[StateBack, ...] = ()
    versions: tuple[VersionBack, ...] = ()
    artifacts: tuple[VersionBack, ...] = ()
    built_on: tuple[BuiltOn, ...] = ()


def together(kept: JsonValue, report: RestoreReport) -> RestoreReport:
    """What this restore and those before it did, so that all of it can be taken back at once."""
    if kept is None:
        return report
    before = RestoreReport.model_validate(kept)
    labels = {(one.kind, one.name, one.label): one for one in before.labels}
    labels |= {
        (one.kind, one.name, one.label): one for one in report.labels if one.state == "restored"
    }
    # What was archived before, brought back by hand and archived again counts once.
    done = [one for one in before.versions if one.state == "archived"]
    made = [one for one in before.artifacts if one.state == "archived"]
    return report.model_copy(
        update={
            "labels": tuple(labels.values()),
            "promotions": _first_of_each(before.promotions, report.promotions),
            "proposals": _first_of_each(before.proposals, report.proposals),
            # In the order of the newest list, which has bundles before what they pin.
            "versions": tuple(
                next((old for old in done if _same(old, one)), one) for one in report.versions
            ),
            "artifacts": tuple(
                next((old for old in made if _same(old, one)), one) for one in report.artifacts
            ),
        }
    )


def _same(one: VersionBack, other: VersionBack) -> bool:
    return (one.kind, one.name, one.number) == (other.kind, other.name, other.number)


def _first_of_each(
    before: Sequence[StateBack], after: Sequence[StateBack]
) -> tuple[StateBack, ...]:
    """The state that each had before anything was restored."""
    return tuple({one.id: one for one in (*reversed(after), *reversed(before))}.values())
