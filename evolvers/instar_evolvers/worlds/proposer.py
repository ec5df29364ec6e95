"""Scripted proposer: a model without weights that answers each method in the format it asks for.

It offers helpful, useless and harmful lessons at known rates, now and then blames the wrong family,
names an id that does not exist, or garbles its reply. Replies are a function of (world seed,
messages), so a replay hears the same, and a repeated question with an error shown is a new draw.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from random import Random

from instar_core.base import JsonValue, canonical_json, content_hash
from instar_core.lab import Role
from instar_core.messages import Messages
from instar_evolvers.strategies.grpo_prompts import STAGES
from instar_evolvers.worlds.draws import pick, uniform
from instar_evolvers.worlds.lore import Lore

__all__ = ["ProposerRates", "ScriptedProposer", "draw_rates"]


@dataclass(frozen=True, slots=True)
class ProposerRates:
    """How often the proposer does what, as shares in [0, 1]; the rest of the offers are useless."""

    helpful: float
    harmful: float
    wrong_blame: float
    unknown_id: float
    garbled: float


def draw_rates(seed: int) -> ProposerRates:
    """The rates of the proposer in the world with this seed."""
    rng = Random(f"proposer:{seed}")
    return ProposerRates(
        helpful=rng.uniform(0.45, 0.60),
        harmful=rng.uniform(0.15, 0.25),
        wrong_blame=rng.uniform(0.05, 0.15),
        unknown_id=rng.uniform(0.02, 0.08),
        garbled=rng.uniform(0.01, 0.05),
    )


class ScriptedProposer:
    """Answers the prompts of the evolvers out of a world's lore.

    Attributes:
        rates: How often it does what.
        offered: Texts of the lessons that it has offered so far, for whoever checks the evolver.
    """

    def __init__(self, seed: int, lore: Lore, rates: ProposerRates) -> None:
        self.rates = rates
        self.offered: set[str] = set()
        self._seed = seed
        self._lore = lore

    def reply(self, role: Role, messages: Messages) -> str:
        """The reply to a conversation, or a shrug where it names no stage that is known here."""
        prompt = next((part.content for part in messages if part.role == "user"), "")
        found = re.search(r"^# Stage: (\w+)$", prompt, flags=re.MULTILINE)
        if found is None or found.group(1) not in STAGES:
            return f"The scripted {role} knows only the questions {', '.join(STAGES)}."
        spoken = [[part.role, part.content] for part in messages]
        key = content_hash(canonical_json(spoken))
        if uniform("garbled", self._seed, key) < self.rates.garbled:
            return "I would rather talk about something else."
        match found.group(1):
            case "summary":
                return self._summary(prompt)
            case "advantage":
                return self._advantage(prompt, key)
            case "update":
                return self._update(prompt, key)
            case _:
                return self._consolidation(prompt)

    def _summary(self, prompt: str) -> str:
        topic = self._lore.topic_in(_section(prompt, "Task")) or "something else"
        outcome = _section(prompt, "Outcome").splitlines()[0]
        return f"<summary>The agent handled a request about {topic}: {outcome}</summary>"

    def _advantage(self, prompt: str, key: str) -> str:
        topics = tuple(self._lore.families)
        topic = self._lore.topic_in(_section(prompt, "Task")) or pick(topics, "lost", key)
        if uniform("blame", self._seed, key) < self.rates.wrong_blame:
            topic = pick([name for name in topics if name != topic], "wrong", self._seed, key)
        limit = int(_number_after(prompt, "with at most "))
        offers = [self._offer(topic, key, index) for index in range(limit)]
        listed = "\n".join(f"{number}. {text}" for number, text in enumerate(offers, start=1))
        return (
            f"<comparison>They differ in how {topic} were handled.</comparison>"
            f"<reasons>A step was missed.</reasons><lessons>\n{listed}\n</lessons>"
        )

    def _offer(self, topic: str, key: str, index: int) -> str:
        family = self._lore.families[topic]
        draw = uniform("offer", self._seed, key, index)
        if draw < self.rates.helpful:
            options = family.rules
        elif draw < self.rates.helpful + self.rates.harmful:
            options = (*family.harmful, *family.contradictions)
        else:
            options = (*family.useless, *self._lore.general)
        text = pick(options, "which", self._seed, key, index).text
        self.offered.add(text)
        return text

    def _update(self, prompt: str, key: str) -> str:
        present = _section(prompt, "Lessons")
        operations: list[JsonValue] = []
        for index, text in enumerate(_items(_section(prompt, "Findings"))):
            if uniform("id", self._seed, key, index) < self.rates.unknown_id:
                operations.append({"op": "UPDATE", "id": "l-unknown", "text": text})
            elif text in present:
                operations.append({"op": "NONE"})
            else:
                operations.append({"op": "ADD", "text": text})
        return json.dumps(operations)

    def _consolidation(self, prompt: str) -> str:
        """The operations without repetitions: the same edit from several groups is one edit."""
        final: dict[str, JsonValue] = {}
        for line in _section(prompt, "Operations by the lesson they touch").splitlines():
            if line.startswith("{"):
                final.setdefault(line, json.loads(line))
        return "Here is the result:\n```json\n" + json.dumps(list(final.values())) + "\n```"


def _section(prompt: str, title: str) -> str:
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\n\n|\Z)", prompt, flags=re.MULTILINE | re.DOTALL
    )
    return found.group(1).strip() if found else ""


def _items(text: str) -> list[str]:
    return re.findall(r"^\d+\. (.*)$", text, flags=re.MULTILINE)


def _number_after(prompt: str, words: str) -> str:
    found = re.search(re.escape(words) + r"(\d+)", prompt)
    return found.group(1) if found else "1"
