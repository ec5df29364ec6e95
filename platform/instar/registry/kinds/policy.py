"""Policy: what tool calls are allowed: rules in Cedar, rules over time, and what is tainted."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from instar.registry.kinds.base import ModelKind
from instar_core.base import Frozen, JsonValue

__all__ = ["CedarRule", "Policy", "PolicyContent", "TemporalRule"]

Effect = Literal["deny", "ask"]


class CedarRule(Frozen):
    """One Cedar policy with its id; the text starts with ``permit`` or ``forbid``."""

    id: str = Field(min_length=1, max_length=128)
    text: str
    note: str = ""

    @field_validator("text")
    @classmethod
    def _is_rule(cls, text: str) -> str:
        """The outline of a policy: its effect, its scope in brackets, its end, nothing unclosed.

        The whole grammar is checked by the engine that runs it; this keeps out what is none.
        """
        code = "\n".join(line.split("//")[0] for line in text.splitlines()).strip()
        while code.startswith("@"):
            code = code.partition(")")[2].strip()
        if not code.startswith(("permit", "forbid")):
            raise ValueError("a rule starts with 'permit' or 'forbid'")
        if not code.endswith(";"):
            raise ValueError("a rule ends with ';'")
        if code.count("(") != code.count(")") or code.count("{") != code.count("}"):
            raise ValueError("a bracket is not closed")
        if "(" not in code:
            raise ValueError("a rule has a scope in brackets: (principal, action, resource)")
        return text


class TemporalRule(Frozen):
    """A rule over the calls of one run: after ``after`` was called, ``then`` is denied or asked."""

    id: str = Field(min_length=1, max_length=128)
    after: tuple[str, ...] = Field(default=(), description="tools; one of them was called before")
    never_after: tuple[str, ...] = Field(
        default=(), description="tools; unless one of them was called before"
    )
    then: tuple[str, ...] = Field(min_length=1, description="tools that the rule is about")
    effect: Effect = "deny"
    within_calls: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _has_condition(self) -> TemporalRule:
        if not self.after and not self.never_after:
            raise ValueError(f"the rule {self.id!r} needs 'after' or 'never_after'")
        return self


class PolicyContent(Frozen):
    """Rules, and what happens where none speaks. What fails is denied."""

    rules: tuple[CedarRule, ...] = ()
    temporal: tuple[TemporalRule, ...] = ()
    taints: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="tool → marks that its results put on what follows"
    )
    risk: dict[str, Literal["read", "write", "money", "send", "code"]] = Field(
        default_factory=dict, description="tool → class of its effects, for rules to speak of"
    )
    default: Literal["allow", "ask", "deny"] = "deny"
    mode: Literal["enforce", "shadow"] = "enforce"

    @model_validator(mode="after")
    def _unique(self) -> PolicyContent:
        ids = [*(rule.id for rule in self.rules), *(rule.id for rule in self.temporal)]
        for one in ids:
            if ids.count(one) > 1:
                raise ValueError(f"two rules have the id {one!r}")
        return self


class Policy(ModelKind[PolicyContent]):
    """A policy as an artifact. Nothing of it is trained unless a person marks it so."""

    name = "policy"
    title = "which tool calls are allowed, held or denied"
    model = PolicyContent

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two policies."""
        rule: dict[str, JsonValue] = {
            "id": "read",
            "text": "permit (principal, action, resource) when { context.read };",
        }
        careful: dict[str, JsonValue] = {
            "id": "pay",
            "after": ["fetch_mail"],
            "then": ["pay"],
            "effect": "ask",
        }
        return {"rules": [rule]}, {"rules": [rule], "temporal": [careful], "risk": {"pay": "money"}}

    def summary(self, content: JsonValue) -> str:
        """How many rules, and the default."""
        found = self.parse(content)
        count = len(found.rules) + len(found.temporal)
        return f"rules: {count}, else {found.default}" + (
            " (shadow)" if found.mode == "shadow" else ""
        )
