"""Usage: what was consumed, and amounts that are reserved against a budget before spending.

Token kinds are disjoint (uncached input, cache read, cache write, output), so their sum is the
provider's total. A cost that no price list knows is a conservative estimate with ``cost_known``
false.
"""

from __future__ import annotations

from pydantic import Field

from instar_core.base import Frozen

__all__ = ["ZERO", "Amount", "Remaining", "Usage"]


class Usage(Frozen):
    """What one or several calls consumed. Adds up with ``+``."""

    input_tokens: int = Field(default=0, ge=0, description="uncached input tokens")
    cache_read_tokens: int = Field(default=0, ge=0)
    cache_write_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    model_calls: int = Field(default=0, ge=0)
    tool_calls: int = Field(default=0, ge=0)
    cost_usd: float = Field(default=0.0, ge=0.0)
    cost_known: bool = True
    wall_s: float = Field(
        default=0.0, ge=0.0, description="seconds of wall time, summed over calls"
    )

    @property
    def tokens(self) -> int:
        """All tokens: the four disjoint kinds together."""
        return (
            self.input_tokens
            + self.cache_read_tokens
            + self.cache_write_tokens
            + self.output_tokens
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
            cost_usd=self.cost_usd + other.cost_usd,
            cost_known=self.cost_known and other.cost_known,
            wall_s=self.wall_s + other.wall_s,
        )


ZERO = Usage()


class Amount(Frozen):
    """A quantity of the four metered things; also a limit (``None`` in a limit means unlimited)."""

    rollouts: int = Field(default=0, ge=0)
    tokens: int = Field(default=0, ge=0)
    cost_usd: float = Field(default=0.0, ge=0.0)
    wall_s: float = Field(default=0.0, ge=0.0)

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            rollouts=self.rollouts + other.rollouts,
            tokens=self.tokens + other.tokens,
            cost_usd=self.cost_usd + other.cost_usd,
            wall_s=self.wall_s + other.wall_s,
        )


class Remaining(Frozen):
    """What is left of a budget; ``None`` means no limit on that quantity."""

    rollouts: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    wall_s: float | None = None
