"""Lore: what there is to know in a world, drawn from its seed.

Eight task families (topics), each with one or two hidden rules that help, rules that harm, their
contradictions, and statements that do nothing. Which action helps in which family is drawn, so no
text and no method can know it beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

__all__ = ["Family", "Lore", "Statement", "StatementKind", "draw_lore"]

StatementKind = Literal["helpful", "harmful", "contradiction", "useless"]

# topic → words that a request may use for it; the lesson always uses the first.
_TOPICS: dict[str, tuple[str, ...]] = {
    "refunds": ("refunds", "money back", "reimbursement"),
    "invoices": ("invoices", "billing sheets", "statements of account"),
    "deliveries": ("deliveries", "late parcels", "shipments"),
    "passwords": ("passwords", "locked sign-ins", "lost logins"),
    "contracts": ("contracts", "signed agreements", "terms of service"),
    "warranties": ("warranties", "guarantee claims", "defective parts"),
    "bookings": ("bookings", "reservations", "room requests"),
    "exports": ("exports", "customs papers", "goods going abroad"),
    "permits": ("permits", "site licences", "access passes"),
    "subscriptions": ("subscriptions", "monthly plans", "renewals"),
    "transfers": ("transfers", "moved accounts", "handovers"),
    "audits": ("audits", "yearly checks", "compliance visits"),
}
_ACTIONS = (
    "compare the two newest entries",
    "quote the case number in the first line",
    "ask the regional desk before closing",
    "convert all amounts at yesterday's rate",
    "read the annex before the main form",
    "use the second address on file",
    "set the clock to the customer's zone",
    "count from the date of receipt",
    "attach the green form",
    "split the order by supplier",
    "check the stamp on the last page",
    "round down to full units",
    "start with the oldest open item",
    "write the reference backwards",
    "leave the middle field empty",
    "treat weekends as one day",
    "confirm by the second channel",
    "look up the holder, not the payer",
    "sort by weight before by date",
    "repeat the check after saving",
)
_NEUTRAL = (
    "stay polite",
    "remember that accuracy matters",
    "keep the reply short",
    "think about what was asked",
    "avoid needless words",
    "keep a calm tone",
)
_FRAMES = (
    "A customer writes about {words} (case {number}). What should be done?",
    "Case {number}: please handle this matter of {words}.",
    "We received a note on {words}, file {number}. Route it.",
    "Someone on the phone asks about {words}; the number is {number}.",
)
_DESKS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "islet", "jetty")


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence that a lesson may hold, with the truth about it."""

    text: str
    kind: StatementKind
    topic: str


@dataclass(frozen=True, slots=True)
class Family:
    """One family of tasks: its words, the desk that its tasks belong to, and what is true of it."""

    topic: str
    words: tuple[str, ...]
    desk: str
    rules: tuple[Statement, ...]
    harmful: tuple[Statement, ...]
    contradictions: tuple[Statement, ...]
    useless: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Lore:
    """All families of a world, and its statements by text."""

    families: dict[str, Family]
    statements: dict[str, Statement]
    general: tuple[Statement, ...]

    def topic_in(self, text: str) -> str | None:
        """The family that a text speaks of, by the first of its words found; None when of none."""
        lowered = text.lower()
        found = [
            (position, family.topic)
            for family in self.families.values()
            for word in family.words
            if (position := lowered.find(word)) >= 0
        ]
        return min(found)[1] if found else None

    def request(self, topic: str, number: int, rng: Random) -> str:
        """The input of one task of a family, in one of many phrasings."""
        words = rng.choice(self.families[topic].words)
        return rng.choice(_FRAMES).format(words=words, number=number)


def draw_lore(seed: int) -> Lore:
    """The lore of the world with this seed.

    Half of the families need two rules and half need one, in an order that is drawn too.
    """
    rng = Random(f"lore:{seed}")
    topics = rng.sample(sorted(_TOPICS), 8)
    desks = rng.sample(_DESKS, 8)
    families = {}
    for index, topic in enumerate(topics):
        actions = rng.sample(_ACTIONS, 5)
        needed = 1 + index % 2
        families[topic] = Family(
            topic=topic,
            words=_TOPICS[topic],
            desk=desks[index],
            rules=tuple(_rule(topic, act, "helpful") for act in actions[:needed]),
            harmful=tuple(_rule(topic, act, "harmful") for act in actions[needed : needed + 2]),
            contradictions=tuple(
                _rule(topic, f"never {act}", "contradiction") for act in actions[:needed]
            ),
            useless=tuple(_rule(topic, act, "useless") for act in rng.sample(_NEUTRAL, 2)),
        )
    general = tuple(Statement(f"Always {act}.", "useless", "") for act in _NEUTRAL)
    parts = [
        part
        for family in families.values()
        for part in (*family.rules, *family.harmful, *family.contradictions, *family.useless)
    ]
    return Lore(families, {part.text: part for part in (*parts, *general)}, general)


def _rule(topic: str, action: str, kind: StatementKind) -> Statement:
    return Statement(f"When a request is about {topic}, {action}.", kind, topic)
