"""Prefix: the keys and values of prompt beginnings seen before, kept in blocks, so that a system
prompt or a group of attempts at one task is computed once."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor

from instar.engine.llama import SlotStore

__all__ = ["BLOCK", "PrefixCache", "block_keys"]

BLOCK = 16
"""Tokens per block."""


def block_keys(tokens: Sequence[int]) -> list[bytes]:
    """A key for every full block of a prompt; a key names all tokens up to the block's end.

    The last token is never part of a block: it must be run to get logits.
    """
    keys: list[bytes] = []
    chain = hashlib.blake2b(digest_size=16)
    for start in range(0, (len(tokens) - 1) // BLOCK * BLOCK, BLOCK):
        chain.update(array("i", tokens[start : start + BLOCK]).tobytes())
        keys.append(chain.digest())
    return keys


class PrefixCache:
    """Blocks by key, the least recently used dropped first.

    Args:
        limit_bytes: Memory that the blocks may take; zero keeps nothing.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._blocks: OrderedDict[bytes, tuple[Tensor, Tensor]] = OrderedDict()
        self._bytes = 0

    def match(self, keys: Sequence[bytes]) -> int:
        """How many leading blocks are here."""
        count = 0
        for key in keys:
            if key not in self._blocks:
                break
            count += 1
        return count

    def load(self, keys: Sequence[bytes], store: SlotStore, slot: int) -> None:
        """Copies blocks that are here into a slot, from position 0 on."""
        for index, key in enumerate(keys):
            self._blocks.move_to_end(key)
            store.write(slot, index * BLOCK, *self._blocks[key])

    def save(self, keys: Sequence[bytes], store: SlotStore, slot: int) -> None:
        """Keeps the blocks of a slot that are not here yet."""
        if not self._limit:
            return
        for index, key in enumerate(keys):
            if key in self._blocks:
                continue
            block = store.read(slot, index * BLOCK, (index + 1) * BLOCK)
            self._blocks[key] = block
            self._bytes += sum(t.numel() * t.element_size() for t in block)
        while self._bytes > self._limit:
            _, block = self._blocks.popitem(last=False)
            self._bytes -= sum(t.numel() * t.element_size() for t in block)
