"""Prices: what a model's tokens cost, from the settings, else from litellm's packaged price list.

A model that neither knows is charged at a conservative price and flagged, never taken as free.
"""

from __future__ import annotations

import importlib.util
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from instar.settings import Settings
from instar_core.base import Frozen
from instar_core.errors import PrerequisiteError
from instar_core.usage import Usage

__all__ = ["FREE", "UNKNOWN", "Price", "known_providers", "price_of", "priced"]

_PRICE_LIST = "model_prices_and_context_window_backup.json"
_MILLION = 1_000_000


class Price(Frozen):
    """US dollars per token of the four disjoint kinds; ``known`` is false for an estimate.

    ``tiers`` hold (more than this many input tokens, input price, output price), rising.
    """

    input: float
    cache_read: float
    cache_write: float
    output: float
    known: bool = True
    tiers: tuple[tuple[int, float, float], ...] = ()

    def cost_of(self, usage: Usage) -> float:
        """The cost of what was used, in US dollars."""
        total = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        into, out, factor = self.input, self.output, 1.0
        for threshold, tier_in, tier_out in self.tiers:
            if total > threshold:
                into, out = tier_in, tier_out
                factor = tier_in / self.input if self.input else 1.0
        return (
            usage.input_tokens * into
            + usage.cache_read_tokens * self.cache_read * factor
            + usage.cache_write_tokens * self.cache_write * factor
            + usage.output_tokens * out
        )

    def bound(self, input_tokens: int, output_tokens: int) -> float:
        """The most that so many tokens can cost, whatever their kind and tier."""
        into = max(self.input, self.cache_read, self.cache_write)
        out = self.output
        for _, tier_in, tier_out in self.tiers:
            into = max(into, into * (tier_in / self.input) if self.input else tier_in)
            out = max(out, tier_out)
        return input_tokens * into + output_tokens * out


FREE = Price(input=0.0, cache_read=0.0, cache_write=0.0, output=0.0)
"""The local engine: this machine's own time."""

UNKNOWN = Price(
    input=15 / _MILLION,
    cache_read=15 / _MILLION,
    cache_write=18.75 / _MILLION,
    output=75 / _MILLION,
    known=False,
)
"""Charged where no list knows the model: what the dearest widely used chat models cost."""


def price_of(model: str, settings: Settings) -> Price:
    """The price of a model by its full name (``provider/model``).

    Args:
        model: As a harness names it.
        settings: ``models.prices`` has the first word.

    Returns:
        A known price, or :data:`UNKNOWN`.
    """
    if model.startswith("local/"):
        return FREE
    own = settings.models.prices.get(model)
    if own is not None:
        into, read, write = own.input, own.cache_read, own.cache_write
        return Price(
            input=into / _MILLION,
            cache_read=(into if read is None else read) / _MILLION,
            cache_write=(into if write is None else write) / _MILLION,
            output=own.output / _MILLION,
        )
    entry = _entry(model)
    return UNKNOWN if entry is None else _from_entry(entry)


def priced(usage: Usage, price: Price) -> Usage:
    """The usage with its cost filled in, and whether that cost is known."""
    return usage.model_copy(update={"cost_usd": price.cost_of(usage), "cost_known": price.known})


def known_providers() -> frozenset[str]:
    """The providers that the price list names."""
    return frozenset(
        str(entry["litellm_provider"])
        for entry in _price_list().values()
        if isinstance(entry, dict) and entry.get("litellm_provider")
    )


def _entry(model: str) -> dict[str, Any] | None:
    """The list's entry under the full name, or under the bare name if it is that provider's."""
    listed = _price_list()
    provider, _, bare = model.partition("/")
    entry = listed.get(model)
    if entry is None and bare:
        found = listed.get(bare)
        if found is not None and str(found.get("litellm_provider", "")).startswith(provider):
            entry = found
    if entry is None or entry.get("input_cost_per_token") is None:
        return None
    return entry if entry.get("output_cost_per_token") is not None else None


def _from_entry(entry: dict[str, Any]) -> Price:
    into, out = float(entry["input_cost_per_token"]), float(entry["output_cost_per_token"])
    tiers = []
    for key, value in entry.items():
        tier = re.fullmatch(r"input_cost_per_token_above_(\d+)k_tokens", key)
        if tier and value is not None:
            dearer = entry.get(f"output_cost_per_token_above_{tier[1]}k_tokens")
            tiers.append((int(tier[1]) * 1000, float(value), float(dearer or out)))
    read, write = (
        entry.get("cache_read_input_token_cost"),
        entry.get("cache_creation_input_token_cost"),
    )
    return Price(
        input=into,
        cache_read=into if read is None else float(read),
        cache_write=into if write is None else float(write),
        output=out,
        tiers=tuple(sorted(tiers)),
    )


@lru_cache(maxsize=1)
def _price_list() -> dict[str, Any]:
    """The list inside the litellm package, read as a file: importing litellm takes seconds."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        raise PrerequisiteError("litellm is not installed.", remedy="Run: pip install instar")
    path = Path(spec.origin).parent / _PRICE_LIST
    listed: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return listed
