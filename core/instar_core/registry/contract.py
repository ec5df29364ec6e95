"""Contract: the one text in which an agent sees what it has, entry by entry, within a budget."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from instar_core.base import Frozen
from instar_core.kinds import estimate_tokens

__all__ = ["DEFAULT_BUDGET", "Contract", "ContractEntry", "build_contract"]

DEFAULT_BUDGET = 2_000
_NAMED = 20


class ContractEntry(Frozen):
    """One thing in the catalogue: what its kind says about it, and the version that is meant."""

    kind: str
    name: str
    version: int | None = None
    line: str


class Contract(Frozen):
    """The catalogue as a text, what is in it, and what did not fit (in words in the text too)."""

    text: str
    entries: tuple[ContractEntry, ...] = ()
    cut: tuple[ContractEntry, ...] = ()
    unread: int = Field(default=0, description="how many more there are, too many to be read")
    tokens: int = 0
    budget_tokens: int = Field(default=DEFAULT_BUDGET, ge=0)


def build_contract(
    entries: Iterable[ContractEntry], *, budget_tokens: int = DEFAULT_BUDGET, unread: int = 0
) -> Contract:
    """Lists entries under a heading for each kind, in the order in which they are given.

    Args:
        entries: What there is. Entries of one kind stay together, in their order.
        budget_tokens: Most tokens (by :func:`estimate_tokens`) of the entries' lines and headings;
            entries that do not fit are left out, later ones first, and named at the end.
        unread: How many more there are that were not read at all; told at the end too.

    Returns:
        The catalogue. Its text is empty where there are no entries: an agent with nothing is shown
        no catalogue.
    """
    by_kind: dict[str, list[ContractEntry]] = {}
    for entry in entries:
        by_kind.setdefault(entry.kind, []).append(entry)
    lines: list[str] = []
    kept: list[ContractEntry] = []
    cut: list[ContractEntry] = []
    spent = 0
    for kind, group in by_kind.items():
        heading = f"{_heading(kind)}:"
        for entry in group:
            new = [_line(entry)]
            if not any(one.kind == kind for one in kept[-1:]):
                new.insert(0, heading)
            cost = sum(estimate_tokens(f"{line}\n") for line in new)
            if cut or spent + cost > budget_tokens:
                cut.append(entry)
                continue
            spent += cost
            lines.extend(new)
            kept.append(entry)
    if cut:
        lines.append(_left_out(cut, budget_tokens))
    if unread:
        count = "1 more entry is" if unread == 1 else f"{unread:,} more entries are"
        lines.append(f"({count} not listed, because there are too many; search for them by name)")
    text = "\n".join(lines)
    return Contract(
        text=text,
        entries=tuple(kept),
        cut=tuple(cut),
        unread=unread,
        tokens=estimate_tokens(text),
        budget_tokens=budget_tokens,
    )


def _heading(kind: str) -> str:
    words = kind.replace("_", " ")
    plural = (
        words if words.endswith("s") else f"{words[:-1]}ies" if words[-1] == "y" else f"{words}s"
    )
    return plural.capitalize()


def _line(entry: ContractEntry) -> str:
    version = "" if entry.version is None else f" (version {entry.version})"
    return f"- {entry.line}{version}"


def _left_out(cut: list[ContractEntry], budget_tokens: int) -> str:
    names = [entry.name for entry in cut]
    named = ", ".join(names[:_NAMED])
    if len(names) > _NAMED:
        named += f" and {len(names) - _NAMED} more"
    count = "1 entry is" if len(cut) == 1 else f"{len(cut)} entries are"
    return (
        f"({count} not listed, because this catalogue may take {budget_tokens:,} tokens: {named})"
    )
