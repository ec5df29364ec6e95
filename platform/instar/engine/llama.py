"""Llama: forward passes of a Llama-family model over a key-value store of sequence slots.

Two passes are enough to serve: ``prefill`` runs the new tokens of several sequences packed one
after another, without padding, and ``decode`` advances every active slot by one token. Linear
layers use oneDNN's packed weights where torch has them: small batches are about twice as
fast with them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Llama", "LlamaShape", "PackedLinear", "SlotStore", "pick_dtype"]

_GROWTH = 256


class LlamaShape(NamedTuple):
    """The numbers of a checkpoint's config that the passes need."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    theta: float
    context: int


class PackedLinear:
    """A linear layer without bias, on weights that oneDNN has laid out for small batches."""

    def __init__(self, weight: Tensor) -> None:
        self._packed: Tensor | None = None
        self._weight: Tensor | None = None
        if torch.backends.mkldnn.is_available() and hasattr(
            torch.ops.mkldnn, "_reorder_linear_weight"
        ):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 8)
        else:
            self._weight = weight.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """(N, in) → (N, out)."""
        if self._packed is None:
            return F.linear(x, self._weight)  # type: ignore[arg-type,unused-ignore]
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")
        return out


class SlotStore:
    """Keys and values of up to ``slots`` sequences, (L, slots, kv_heads, capacity, head_dim).

    Active sequences always occupy the first slots, so that decoding reads one contiguous block.
    """

    def __init__(self, shape: LlamaShape, slots: int, dtype: torch.dtype) -> None:
        self._shape = shape
        self._slots = slots
        self._dtype = dtype
        self.capacity = 0
        self.keys = torch.empty(0)
        self.values = torch.empty(0)

    def reserve(self, tokens: int) -> None:
        """Grows the store so that every slot holds ``tokens`` tokens; contents are kept."""
        if tokens <= self.capacity:
            return
        grown = -(-tokens // _GROWTH) * _GROWTH
        s = self._shape
        size = (s.layers, self._slots, s.kv_heads, grown, s.head_dim)
        keys, values = torch.zeros(size, dtype=self._dtype), torch.zeros(size, dtype=self._dtype)
        if self.capacity:
            keys[:, :, :, : self.capacity] = self.keys
            values[:, :, :, : self.capacity] = self.values
        self.keys, self.values, self.capacity = keys, values, grown

    def release(self) -> None:
        """Gives the memory back; called when no sequence is active."""
        self.keys, self.values, self.capacity = torch.empty(0), torch.empty(0), 0

    def move(self, source: int, target: int, length: int) -> None:
        """Moves the first ``length`` tokens of one slot into another."""
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def read(self, slot: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values of tokens ``start`` to ``stop`` of a slot."""
        return (
            self.keys[:, slot, :, start:stop].clone(),
            self.values[:, slot, :, start:stop].clone(),
        )

    def write(self, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Puts keys and values (L, kv_heads, n, head_dim) at position ``start`` of a slot."""
        stop = start + keys.shape[2]
        self.keys[:, slot, :, start:stop] = keys
        self.values[:, slot, :, start:stop] = values


class _Layer:
    """Weights of one decoder layer, with query, key and value (and gate and up) joined."""

    def __init__(self, tensors: dict[str, Tensor], index: int, dtype: torch.dtype) -> None:
        def get(name: str) -> Tensor:
            return tensors[f"model.layers.{index}.{name}.weight"].to(dtype)

        self.norm_in = get("input_layernorm")
        self.norm_post = get("post_attention_layernorm")
        self.qkv = PackedLinear(
            torch.cat([get(f"self_attn.{part}_proj") for part in ("q", "k", "v")])
        )
        self.out = PackedLinear(get("self_attn.o_proj"))
        self.gate_up = PackedLinear(torch.cat([get("mlp.gate_proj"), get("mlp.up_proj")]))
        self.down = PackedLinear(get("mlp.down_proj"))
        self.split = get("mlp.gate_proj").shape[0]


class Llama:
    """A Llama-family causal model, for inference on the CPU.

    Args:
        folder: A transformers folder with ``config.json`` and ``model.safetensors``.
        dtype: Of weights and activations; norms and logits are float32.

    Raises:
        ValueError: If the checkpoint is of another family or uses features that are not served.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from safetensors.torch import load_file

        self.dtype = dtype
        self.shape = _read_shape(folder)
        tensors = load_file(str(folder / "model.safetensors"))
        self._embed = tensors["model.embed_tokens.weight"].to(dtype).contiguous()
        head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
        self._head = PackedLinear(head.to(dtype))
        self._norm = tensors["model.norm.weight"].to(dtype)
        self._layers = [_Layer(tensors, i, dtype) for i in range(self.shape.layers)]
        self._cos, self._sin = _rotary_table(self.shape, dtype)

    def new_store(self, slots: int) -> SlotStore:
        """An empty store for this model."""
        return SlotStore(self.shape, slots, self.dtype)

    def prefill(
        self,
        store: SlotStore,
        slots: Sequence[int],
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
    ) -> Tensor:
        """Runs new tokens of several sequences; their keys and values go into the store.

        Args:
            store: Has room for every sequence (``reserve`` was called).
            slots: The slot of each sequence.
            starts: How many tokens of each sequence its slot already holds.
            tokens: The new tokens of each sequence, at least one each.

        Returns:
            (R, vocab) float32 logits after the last token of each sequence.
        """
        sizes = [len(part) for part in tokens]
        ids = torch.tensor([t for part in tokens for t in part], dtype=torch.long)
        positions = torch.cat([torch.arange(a, a + n) for a, n in zip(starts, sizes, strict=True)])
        rows = list(zip(slots, starts, sizes, strict=True))
        masks = [_mask(a, n, self.dtype) if a and n > 1 else None for _, a, n in rows]
        x = self._embed[ids]
        cos, sin = self._cos[positions], self._sin[positions]
        for index, layer in enumerate(self._layers):
            q, k, v = self._project(layer, x, cos, sin)
            keys, values = store.keys[index], store.values[index]
            parts, offset = [], 0
            for (slot, start, size), mask in zip(rows, masks, strict=True):
                span = slice(offset, offset + size)
                keys[slot, :, start : start + size] = k[span].transpose(0, 1)
                values[slot, :, start : start + size] = v[span].transpose(0, 1)
                attended = F.scaled_dot_product_attention(
                    q[span].transpose(0, 1).unsqueeze(0),
                    keys[slot : slot + 1, :, : start + size],
                    values[slot : slot + 1, :, : start + size],
                    attn_mask=mask,
                    is_causal=mask is None and size > 1,
                    enable_gqa=True,
                )
                parts.append(attended[0].transpose(0, 1).reshape(size, -1))
                offset += size
            x = self._finish(layer, x, torch.cat(parts))
        last = torch.tensor(sizes).cumsum(0) - 1
        return self._logits(x[last])

    def decode(self, store: SlotStore, lengths: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Advances the first ``len(tokens)`` slots by one token each.

        Args:
            store: Has room for one more token in every slot.
            lengths: How many tokens each slot holds before this one.
            tokens: The token that each slot gets now.

        Returns:
            (B, vocab) float32 logits after that token.
        """
        s = self.shape
        count, longest = len(tokens), max(lengths) + 1
        position = torch.tensor(lengths, dtype=torch.long)
        index_of = torch.arange(count)
        mask = None
        if min(lengths) + 1 < longest:
            hidden = torch.arange(longest).unsqueeze(0) > position.unsqueeze(1)
            mask = torch.zeros(count, longest, dtype=self.dtype)
            mask = mask.masked_fill(hidden, float("-inf"))[:, None, None, :]
        x = self._embed[torch.tensor(tokens, dtype=torch.long)]
        cos, sin = self._cos[position], self._sin[position]
        for index, layer in enumerate(self._layers):
            q, k, v = self._project(layer, x, cos, sin)
            keys, values = store.keys[index], store.values[index]
            keys[index_of, :, position] = k
            values[index_of, :, position] = v
            # The queries of one key-value head are its "sequence": grouped attention, no copies.
            attended = F.scaled_dot_product_attention(
                q.view(count, s.kv_heads, -1, s.head_dim),
                keys[:count, :, :longest],
                values[:count, :, :longest],
                attn_mask=mask,
            )
            x = self._finish(layer, x, attended.reshape(count, -1))
        return self._logits(x)

    def _project(
        self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        s = self.shape
        normed = F.rms_norm(x, (s.hidden,), layer.norm_in, s.eps)
        heads = layer.qkv(normed).view(x.shape[0], -1, s.head_dim)
        both, v = heads[:, : s.heads + s.kv_heads], heads[:, s.heads + s.kv_heads :]
        half = s.head_dim // 2
        turned = torch.cat((-both[..., half:], both[..., :half]), dim=-1)
        both = both * cos + turned * sin
        return both[:, : s.heads], both[:, s.heads :], v

    def _finish(self, layer: _Layer, x: Tensor, attended: Tensor) -> Tensor:
        x = x + layer.out(attended)
        normed = F.rms_norm(x, (self.shape.hidden,), layer.norm_post, self.shape.eps)
        both = layer.gate_up(normed)
        gated = F.silu(both[:, : layer.split]).mul_(both[:, layer.split :])
        return x + layer.down(gated)

    def _logits(self, x: Tensor) -> Tensor:
        s = self.shape
        return self._head(F.rms_norm(x, (s.hidden,), self._norm, s.eps)).float()


def pick_dtype(wanted: str) -> torch.dtype:
    """The faster of float32 and bfloat16 on this processor, or the one that was asked for.

    CPUs differ: with AMX bfloat16 is several times faster, with AVX-512 alone it can lose to
    float32 on prompts. So both are timed for a moment on the shapes of a small model (a prompt of
    256 tokens and its share of 24 steps in a batch of 8).
    """
    if wanted != "auto":
        return torch.float32 if wanted == "float32" else torch.bfloat16
    return min((torch.float32, torch.bfloat16), key=_cost)


def _cost(dtype: torch.dtype) -> float:
    import time

    with torch.inference_mode():
        layer = PackedLinear(torch.ones(1536, 576, dtype=dtype))
        best = []
        for rows, times in ((256, 1), (8, 3)):
            x = torch.ones(rows, 576, dtype=dtype)
            layer(x)
            spans = []
            for _ in range(5):
                begun = time.perf_counter()
                layer(x)
                spans.append(time.perf_counter() - begun)
            best.append(min(spans) * times)
    return sum(best)


def _mask(start: int, size: int, dtype: torch.dtype) -> Tensor:
    hidden = torch.ones(size, start + size, dtype=torch.bool).triu(start + 1)
    return torch.zeros(size, start + size, dtype=dtype).masked_fill(hidden, float("-inf"))


def _read_shape(folder: Path) -> LlamaShape:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10_000.0)}
    plain = not config.get("attention_bias") and not config.get("mlp_bias")
    served = config["model_type"] == "llama" and rope.get("rope_type", "default") == "default"
    if not (served and plain and config.get("hidden_act", "silu") == "silu"):
        raise ValueError(
            f"the engine serves Llama models without biases and with plain rotary positions; "
            f"{folder} has model_type {config['model_type']!r}, rope {rope.get('rope_type')!r}"
        )
    heads = config["num_attention_heads"]
    return LlamaShape(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads", heads),
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab=config["vocab_size"],
        eps=config["rms_norm_eps"],
        theta=rope["rope_theta"],
        context=config["max_position_embeddings"],
    )


def _rotary_table(shape: LlamaShape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines, (context, 1, head_dim), computed in float32 as the reference does."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.arange(shape.context, dtype=torch.float32)[:, None] / (shape.theta**half)
    full = torch.cat((angles, angles), dim=-1)
    return full.cos().to(dtype)[:, None, :], full.sin().to(dtype)[:, None, :]
