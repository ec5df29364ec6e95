"""Sampling: one next token per sequence, each with its own temperature, nucleus and stream."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Sampler", "choose"]

_HEAD = 512


@dataclass(slots=True)
class Sampler:
    """How one sequence is sampled. ``temperature`` 0 is greedy and draws nothing."""

    temperature: float
    top_p: float
    rng: random.Random


def choose(logits: Tensor, samplers: list[Sampler]) -> list[tuple[int, float]]:
    """The next token of each sequence, with its log-probability.

    Args:
        logits: (B, vocab) float32.
        samplers: One per row; the random stream of a row advances by one draw.

    Returns:
        Token id and natural log-probability under the raw distribution (temperature 1, no nucleus).
    """
    best = logits.argmax(dim=-1).tolist()
    chosen = [
        _draw(logits[row], sampler) if sampler.temperature > 0 else best[row]
        for row, sampler in enumerate(samplers)
    ]
    index = torch.tensor(chosen).unsqueeze(1)
    logprobs = logits.gather(1, index).squeeze(1) - logits.logsumexp(dim=-1)
    return list(zip(chosen, logprobs.tolist(), strict=True))


def _draw(row: Tensor, sampler: Sampler) -> int:
    """One draw by inversion; the nucleus is the smallest best set that holds ``top_p``."""
    point = sampler.rng.random()
    probabilities = torch.softmax(row / sampler.temperature, dim=-1)
    if sampler.top_p >= 1.0:
        return _invert(probabilities, point)
    values, ids = probabilities.topk(min(_HEAD, row.shape[0]))
    if float(values.sum()) < sampler.top_p:
        values, ids = probabilities.sort(descending=True)
    before = values.cumsum(0) - values
    inside = values[before < sampler.top_p]
    return int(ids[_invert(inside, point)])


def _invert(weights: Tensor, point: float) -> int:
    """The index at which the cumulated weight passes ``point`` of the total."""
    cumulated = weights.double().cumsum(0)
    index = int(torch.searchsorted(cumulated, point * float(cumulated[-1]), right=True))
    return min(index, len(weights) - 1)
