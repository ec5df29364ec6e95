"""Scheduler: the one thread that generates. It admits waiting sequences between steps, advances all
active ones together, and runs embedding jobs in between, so that nothing else touches the model.

In exact mode there is one slot and no prefix reuse: each sequence is computed alone and unpadded.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from instar.engine.prefix import BLOCK, PrefixCache, block_keys
from instar.engine.sampling import Sampler, choose

if TYPE_CHECKING:
    from torch import Tensor

    from instar.engine.llama import Llama

__all__ = [
    "Embedder",
    "EmbeddingJob",
    "Finish",
    "Generation",
    "Scheduler",
    "SchedulerLimits",
    "TextDecoder",
]

_log = logging.getLogger("instar.engine")

Finish = Literal["stop", "length", "cancelled", "failed"]
TextDecoder = Callable[[Sequence[int]], str]


class Embedder(Protocol):
    """What turns texts into unit vectors on the generating thread."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors for the texts, in order."""
        ...


@dataclass(slots=True)
class Generation:
    """One sequence to generate. Everything below ``done`` is filled in by the scheduler.

    ``done`` is called exactly once, on the generating thread, when ``finish`` is set.
    """

    prompt: list[int]
    sampler: Sampler
    max_tokens: int
    stop: tuple[str, ...]
    end_ids: frozenset[int]
    done: Callable[[Generation], None]
    cancelled: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    text: str = ""
    error: str = ""
    cached_tokens: int = 0
    keys: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class EmbeddingJob:
    """Texts to embed; ``done`` gets the vectors, or the error as text."""

    texts: list[str]
    done: Callable[[list[list[float]] | None, str], None]
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds: slots, memory for prefixes, tokens of one prompt pass, tokens of all active together.

    One sequence alone may pass the last two; a prompt is then run in pieces.
    """

    slots: int
    prefix_bytes: int
    prefill_tokens: int = 2048
    store_tokens: int = 49_152


class Scheduler:
    """Generates on one thread of its own.

    Args:
        model: The chat model.
        embedder: The embedding model, or ``None``.
        decode_text: Token ids → text, special tokens left out; used on the generating thread only.
        limits: Slots and memory.
    """

    def __init__(
        self,
        model: Llama,
        embedder: Embedder | None,
        decode_text: TextDecoder,
        limits: SchedulerLimits,
    ) -> None:
        self._model = model
        self._embedder = embedder
        self._decode_text = decode_text
        self._limits = limits
        self._store = model.new_store(limits.slots)
        self._prefixes = PrefixCache(limits.prefix_bytes)
        self._wake = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._embeddings: deque[EmbeddingJob] = deque()
        self._active: list[Generation] = []
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="engine-generate", daemon=True)

    def start(self) -> None:
        """Starts the generating thread."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Finishes what is active, cancels what waits, and ends the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def submit(self, sequence: Generation) -> None:
        """Queues a sequence; its ``done`` is called later on the generating thread."""
        with self._wake:
            if not self._ended:
                self._waiting.append(sequence)
                self._wake.notify()
                return
        _close(sequence, "cancelled")

    def submit_embedding(self, job: EmbeddingJob) -> None:
        """Queues texts to embed."""
        with self._wake:
            if not self._ended:
                self._embeddings.append(job)
                self._wake.notify()
                return
        job.done(None, "the generating thread ended")

    @property
    def alive(self) -> bool:
        """Whether it still generates."""
        return not self._ended

    @property
    def load(self) -> tuple[int, int]:
        """(active, waiting) sequences."""
        return len(self._active), len(self._waiting)

    def _run(self) -> None:
        import torch

        try:
            with torch.inference_mode():
                self._serve()
        finally:
            self._end()

    def _serve(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._stopping or self._active or self._waiting or self._embeddings
                )
                if self._stopping and not self._active:
                    break
            self._turn()

    def _end(self) -> None:
        """Answers whatever is left, so that nobody waits for a thread that is gone."""
        with self._wake:
            self._ended = True
            left = [*self._active, *self._waiting]
        for sequence in left:
            sequence.error = "the generating thread ended"
            _close(sequence, "cancelled" if self._stopping else "failed")
        for job in self._embeddings:
            job.done(None, "the generating thread ended")

    def _turn(self) -> None:
        """One round: embeddings, admission, one step; a failure ends requests, not the thread."""
        try:
            self._embed_waiting()
            if not self._stopping:
                self._admit()
            self._drop_finished()
            if self._active:
                self._step()
        except (RuntimeError, MemoryError, ValueError) as error:
            _log.exception("generation failed")
            for sequence in self._active:
                sequence.error = f"{type(error).__name__}: {error}"
                _close(sequence, "failed")
            self._active.clear()
            self._store.release()

    def _embed_waiting(self) -> None:
        while self._embeddings:
            job = self._embeddings.popleft()
            if job.cancelled:
                continue
            if self._embedder is None:
                job.done(None, "no embedding model is installed")
                continue
            try:
                vectors = self._embedder.embed(job.texts)
            except (RuntimeError, ValueError) as error:
                job.done(None, f"{type(error).__name__}: {error}")
            else:
                job.done(vectors, "")

    def _admit(self) -> None:
        """Fills free slots; of sequences that share a prefix not seen yet, one goes ahead."""
        while self._waiting and len(self._active) < self._limits.slots:
            batch: list[Generation] = []
            ahead: set[bytes] = set()
            later: list[Generation] = []
            budget = self._limits.prefill_tokens
            room = self._limits.store_tokens - sum(_most_tokens(s) for s in self._active)
            while self._waiting and len(self._active) + len(batch) < self._limits.slots:
                sequence = self._waiting.popleft()
                if sequence.cancelled:
                    _close(sequence, "cancelled")
                    continue
                if self._limits.prefix_bytes and not sequence.keys:
                    sequence.keys = block_keys(sequence.prompt)
                matched = self._prefixes.match(sequence.keys)
                following = sequence.keys[matched : matched + 1]
                cost = len(sequence.prompt) - matched * BLOCK
                crowded = bool(self._active or batch) and _most_tokens(sequence) > room
                if crowded or (following and following[0] in ahead) or (batch and cost > budget):
                    later.append(sequence)
                    continue
                ahead.update(following)
                sequence.cached_tokens = matched * BLOCK
                batch.append(sequence)
                budget -= cost
                room -= _most_tokens(sequence)
            with self._wake:
                self._waiting.extendleft(reversed(later))
            if not batch:
                return
            self._prefill(batch)

    def _prefill(self, batch: list[Generation]) -> None:
        first = len(self._active)
        self._active.extend(batch)
        self._store.reserve(max(len(s.prompt) + len(s.tokens) for s in self._active) + 1)
        for slot, sequence in enumerate(batch, first):
            matched = sequence.keys[: sequence.cached_tokens // BLOCK]
            self._prefixes.load(matched, self._store, slot)
        if len(batch) == 1:
            logits = self._prefill_long(batch[0], first)
        else:
            logits = self._model.prefill(
                self._store,
                range(first, first + len(batch)),
                [s.cached_tokens for s in batch],
                [s.prompt[s.cached_tokens :] for s in batch],
            )
        for slot, sequence in enumerate(batch, first):
            self._prefixes.save(sequence.keys, self._store, slot)
        self._extend(batch, logits)

    def _prefill_long(self, sequence: Generation, slot: int) -> Tensor:
        """A prompt alone, in pieces of fixed size, so that memory stays bounded."""
        start, logits = sequence.cached_tokens, None
        while start < len(sequence.prompt):
            piece = sequence.prompt[start : start + self._limits.prefill_tokens]
            logits = self._model.prefill(self._store, [slot], [start], [piece])
            start += len(piece)
        assert logits is not None  # a prompt has at least one token that is not in the cache
        return logits

    def _step(self) -> None:
        lengths = [len(s.prompt) + len(s.tokens) - 1 for s in self._active]
        self._store.reserve(max(lengths) + 1)
        logits = self._model.decode(self._store, lengths, [s.tokens[-1] for s in self._active])
        self._extend(self._active, logits)
        self._drop_finished()

    def _extend(self, sequences: Sequence[Generation], logits: Tensor) -> None:
        chosen = choose(logits, [s.sampler for s in sequences])
        for sequence, (token, logprob) in zip(sequences, chosen, strict=True):
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
            self._judge(sequence, token)

    def _judge(self, sequence: Generation, token: int) -> None:
        """Decides whether a sequence is finished after its newest token."""
        if token in sequence.end_ids:
            sequence.text, sequence.finish = self._decode_text(sequence.tokens), "stop"
        elif len(sequence.tokens) >= sequence.max_tokens:
            sequence.text, sequence.finish = self._decode_text(sequence.tokens), "length"
        elif sequence.cancelled:
            sequence.finish = "cancelled"
        if sequence.stop and sequence.finish != "cancelled":
            text = self._decode_text(sequence.tokens)
            cuts = [at for at in (text.find(stop) for stop in sequence.stop) if at >= 0]
            if cuts:
                sequence.text, sequence.finish = text[: min(cuts)], "stop"

    def _drop_finished(self) -> None:
        """Tells the finished ones, and moves the last active slot into each hole."""
        slot = 0
        while slot < len(self._active):
            sequence = self._active[slot]
            if sequence.finish is None:
                slot += 1
                continue
            last = self._active.pop()
            if last is not sequence:
                self._active[slot] = last
                length = len(last.prompt) + len(last.tokens) - 1
                self._store.move(len(self._active), slot, length)
            sequence.done(sequence)
        if not self._active and self._store.capacity > 2 * self._limits.prefill_tokens:
            self._store.release()


def _most_tokens(sequence: Generation) -> int:
    return len(sequence.prompt) + sequence.max_tokens


def _close(sequence: Generation, finish: Finish) -> None:
    sequence.finish = finish
    sequence.done(sequence)
