"""Embedding: unit vectors of MiniLM, mean-pooled; texts seen before come from memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch

__all__ = ["MiniLM"]

_BATCH = 32
_REMEMBERED = 8192
_MAX_TOKENS = 256


class MiniLM:
    """The sentence encoder all-MiniLM-L6-v2, from its folder; texts beyond 256 tokens are cut.

    Args:
        folder: The model's folder (``config.json``, ``model.safetensors``, ``tokenizer.json``).
        one_by_one: Embed each text alone, so that a vector does not depend on its neighbours.
    """

    def __init__(self, folder: Path, *, one_by_one: bool = False) -> None:
        from tokenizers import Tokenizer
        from transformers import BertModel

        self._model = BertModel.from_pretrained(str(folder), dtype=torch.float32)
        self._model.eval()
        self._model.requires_grad_(False)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(_MAX_TOKENS)
        self._tokenizer.no_padding()
        self._batch = 1 if one_by_one else _BATCH
        self._known: OrderedDict[str, list[float]] = OrderedDict()

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors of 384 numbers for the texts, in order."""
        fresh = sorted({t for t in texts if t not in self._known}, key=lambda t: (len(t), t))
        found = {t: self._known[t] for t in texts if t in self._known}
        for start in range(0, len(fresh), self._batch):
            part = fresh[start : start + self._batch]
            found.update(zip(part, self._encode(part), strict=True))
        for text in found:
            self._known[text] = found[text]
            self._known.move_to_end(text)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return [found[text] for text in texts]

    def _encode(self, texts: list[str]) -> list[list[float]]:
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]
        width = max(len(row) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            mask[index, : len(row)] = 1
        states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(states.dtype)
        pooled = (states * weights).sum(1) / weights.sum(1)
        unit = torch.nn.functional.normalize(pooled, dim=-1)
        vectors: list[list[float]] = unit.tolist()
        return vectors
