"""The packaged open model in a real engine process, and the clients that speak to it.

The converted model is kept in ``INSTAR_TEST_MODEL_DIR``, or in the user's cache, so that a machine
converts it once.
"""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.demo import model_cache
from instar.engine.weights import CHAT_MODEL, EMBEDDING_MODEL, model_dir
from instar.models.base import ModelReply, ModelRequest
from instar.models.embedder import open_embedder
from instar.models.install import install_model
from instar.models.registry import check_model, open_model
from instar.settings import Settings
from instar_core.errors import ContextOverflow, UserError
from instar_core.messages import Message, Messages, Sampling, ToolDefinition

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.model]

LOCAL = f"local/{CHAT_MODEL}"
QUESTIONS = (
    "What is the capital of France?",
    "Name a colour.",
    "Write one sentence about a river that runs through a valley and past a mill.",
    "Count from one to five.",
    "What do bees make?",
    "Say hello in Spanish.",
)


class Engine:
    """One engine process on a free port."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.settings = Settings(data_dir=data_dir)
        self.settings.engine.port = port
        self.base = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "instar.engine", "--port", str(port)]
        command += ["--data-dir", str(data_dir), *options]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self._wait()

    def _wait(self) -> None:
        """Until it is ready; a failed state ends the test at once."""
        retries = httpx.HTTPTransport(retries=8)
        with httpx.Client(base_url=self.base, transport=retries, timeout=60) as client:
            while True:
                assert self.process.poll() is None, "the engine ended"
                report = client.get("/healthz", params={"wait_s": 30}).json()
                assert report["state"] in ("loading", "ready"), report["reason"]
                if report["state"] == "ready":
                    return

    def health(self) -> dict[str, Any]:
        report: dict[str, Any] = httpx.get(f"{self.base}/healthz", timeout=30).json()
        return report

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def data_dir() -> Path:
    folder = model_cache()
    install_model(folder, lambda message, share: None)
    return folder


@pytest.fixture(scope="module")
def exact(data_dir: Path) -> Iterator[Engine]:
    engine = Engine(data_dir, "--exact")
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def batched(data_dir: Path) -> Iterator[Engine]:
    engine = Engine(data_dir, "--max-batch", "8")
    yield engine
    engine.stop()


def _messages(text: str) -> Messages:
    return (Message(role="system", content="Answer briefly."), Message(role="user", content=text))


def _request(text: str, *, seed: int = 5, temperature: float = 0.0, **changes: Any) -> ModelRequest:
    sampling = Sampling(temperature=temperature, max_tokens=changes.pop("max_tokens", 24))
    return ModelRequest(
        model=LOCAL, messages=_messages(text), sampling=sampling, seed=seed, **changes
    )


def _ask_together(engine: Engine, requests: list[ModelRequest]) -> list[ModelReply]:
    async def run() -> list[ModelReply]:
        client = open_model(LOCAL, engine.settings)
        return list(await asyncio.gather(*(client.complete(r) for r in requests)))

    return asyncio.run(run())


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_exact_replies_do_not_depend_on_the_load(exact: Engine, temperature: float) -> None:
    requests = [_request(text, temperature=temperature) for text in QUESTIONS]
    alone = [_ask_together(exact, [request])[0] for request in requests[:2]]
    together = _ask_together(exact, requests[::-1])[::-1]
    for one, other in zip(alone, together, strict=False):
        assert one.capture == other.capture
        assert one.message == other.message


def test_seeds_choose_the_draw(exact: Engine) -> None:
    text = QUESTIONS[2]
    replies = _ask_together(
        exact, [_request(text, seed=seed, temperature=1.0) for seed in (1, 1, 2)]
    )
    assert replies[0].capture == replies[1].capture
    assert replies[0].capture != replies[2].capture


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_a_forward_pass(
    batched: Engine, data_dir: Path, temperature: float
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model_dir(data_dir), dtype=torch.float32)
    tolerance = 0.01 if batched.health()["dtype"] == "float32" else 0.6
    for reply in _ask_together(batched, [_request(q, temperature=temperature) for q in QUESTIONS]):
        capture = reply.capture
        assert capture is not None
        assert len(capture.logprobs) == len(capture.reply_ids) > 0
        ids = torch.tensor([[*capture.prompt_ids, *capture.reply_ids]])
        with torch.no_grad():
            table = reference(ids).logits[0].log_softmax(-1)
        for offset, (token, logprob) in enumerate(
            zip(capture.reply_ids, capture.logprobs, strict=True), len(capture.prompt_ids) - 1
        ):
            assert float(table[offset, token]) == pytest.approx(logprob, abs=tolerance)
            if temperature == 0.0 and tolerance < 0.1:
                assert float(table[offset].max() - table[offset, token]) < tolerance


def test_a_shared_prompt_is_computed_once(batched: Engine) -> None:
    text = "Repeat after me: " + "the mill by the river " * 12
    first, second = (_ask_together(batched, [_request(text)])[0] for _ in range(2))
    assert first.usage.cache_read_tokens <= second.usage.cache_read_tokens
    assert second.usage.cache_read_tokens > 32
    assert first.usage.tokens == second.usage.tokens
    assert first.message == second.message


def test_usage_of_the_local_model_is_counted_and_free(batched: Engine) -> None:
    client = open_model(LOCAL, batched.settings)
    request = _request(QUESTIONS[0])
    reply = _ask_together(batched, [request])[0]
    assert reply.capture is not None
    usage = reply.usage
    assert usage.output_tokens == len(reply.capture.reply_ids)
    assert usage.tokens == len(reply.capture.prompt_ids) + usage.output_tokens
    assert (usage.cost_usd, usage.cost_known, usage.model_calls) == (0.0, True, 1)
    reserved = client.reserve_for(request).tokens
    assert usage.tokens - usage.output_tokens + 24 <= reserved <= usage.tokens + 128
    assert CHAT_MODEL in reply.fingerprint
    assert batched.base in reply.fingerprint


def test_a_prompt_beyond_the_context_is_the_agents_doing(batched: Engine) -> None:
    with pytest.raises(ContextOverflow, match="8192"):
        _ask_together(batched, [_request("word " * 9000)])


def test_native_tools_are_refused_before_anything_is_sent(batched: Engine) -> None:
    with pytest.raises(UserError, match="tool_protocol"):
        _ask_together(batched, [_request("x", tools=(ToolDefinition(name="t"),))])


def test_raw_completions_stop_where_told(batched: Engine) -> None:
    body = {
        "model": CHAT_MODEL,
        "prompt": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
        "temperature": 0,
        "max_tokens": 40,
        "stop": [" 14"],
        "n": 2,
        "logprobs": 0,
    }
    answer = httpx.post(f"{batched.base}/v1/completions", json=body, timeout=120).json()
    assert [choice["text"] for choice in answer["choices"]] == [" 12, 13,"] * 2
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) > 0


def test_a_client_that_hangs_up_frees_its_slot(exact: Engine) -> None:
    async def run() -> None:
        client = open_model(LOCAL, exact.settings)
        endless = asyncio.ensure_future(
            client.complete(_request("Tell a story.", temperature=2.0, max_tokens=8000))
        )
        async with httpx.AsyncClient(base_url=exact.base, timeout=60) as http:
            while (await http.get("/healthz")).json()["active"] == 0:
                continue
        endless.cancel()
        # The one slot must come free, or this would wait for 8,000 tokens, into the time-out.
        async with asyncio.timeout(60):
            await client.complete(_request(QUESTIONS[0], max_tokens=2))

    asyncio.run(run())


def test_embeddings_are_unit_vectors_that_mean_something(batched: Engine) -> None:
    texts = ["a cat sleeps", "a kitten naps", "quarterly tax law", "", "a cat sleeps", "x " * 2000]

    async def run() -> list[list[float]]:
        return await open_embedder(batched.settings).embed(texts)

    vectors = asyncio.run(run())
    assert [len(vector) for vector in vectors] == [384] * len(texts)
    for vector in vectors:
        assert math.hypot(*vector) == pytest.approx(1.0, abs=1e-5)

    def similarity(a: int, b: int) -> float:
        return sum(x * y for x, y in zip(vectors[a], vectors[b], strict=True))

    assert vectors[0] == vectors[4]
    assert similarity(0, 1) > 0.5 > similarity(0, 2)


def test_the_official_client_and_litellm_speak_to_it(batched: Engine) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{batched.base}/v1", api_key="none", max_retries=0)
    said = client.chat.completions.create(
        model=CHAT_MODEL,
        messages=[{"role": "user", "content": QUESTIONS[0]}],
        temperature=0,
        max_tokens=12,
        logprobs=True,
    )
    client.close()
    assert "Paris" in (said.choices[0].message.content or "")
    logprobs = said.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert all(entry.logprob <= 0 for entry in logprobs.content)

    settings = batched.settings.model_copy(deep=True)
    name = f"openai/{CHAT_MODEL}"
    settings.models.api_base[name] = f"{batched.base}/v1"
    request = ModelRequest(
        model=name,
        messages=(Message(role="user", content=QUESTIONS[0]),),
        sampling=Sampling(max_tokens=12),
    )
    reply = asyncio.run(open_model(name, settings).complete(request))
    assert reply.message.content == said.choices[0].message.content
    assert not reply.usage.cost_known
    assert f"{batched.base}/v1" in reply.fingerprint


def test_models_are_listed_and_ready(batched: Engine) -> None:
    listed = httpx.get(f"{batched.base}/v1/models", timeout=30).json()["data"]
    assert [entry["id"] for entry in listed] == [CHAT_MODEL, EMBEDDING_MODEL]
    asyncio.run(check_model(LOCAL, batched.settings))


def test_sigterm_finishes_what_is_being_generated(data_dir: Path) -> None:
    engine = Engine(data_dir)

    async def run() -> ModelReply:
        client = open_model(LOCAL, engine.settings)
        asked = asyncio.ensure_future(
            client.complete(_request("Tell a story.", temperature=1.0, max_tokens=60))
        )
        async with httpx.AsyncClient(base_url=engine.base, timeout=60) as http:
            while (await http.get("/healthz")).json()["active"] == 0:
                continue
        engine.process.send_signal(signal.SIGTERM)
        return await asked

    reply = asyncio.run(run())
    assert reply.usage.output_tokens > 0
    assert engine.process.wait(timeout=60) in (0, -signal.SIGTERM)
