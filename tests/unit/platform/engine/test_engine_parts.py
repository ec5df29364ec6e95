"""Sampling, prefixes and the scheduler's order, on small tensors and a tiny random Llama."""

from __future__ import annotations

import json
import math
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.model


def _logits(*probabilities: float) -> Any:
    return torch.tensor([[math.log(p) for p in probabilities]])


def _draws(logits: Any, temperature: float, top_p: float, count: int) -> Counter[int]:
    from instar.engine.sampling import Sampler, choose

    sampler = Sampler(temperature, top_p, random.Random(1))
    return Counter(choose(logits, [sampler])[0][0] for _ in range(count))


def test_greedy_takes_the_best_and_reports_its_raw_logprob() -> None:
    from instar.engine.sampling import Sampler, choose

    [(token, logprob)] = choose(_logits(0.2, 0.5, 0.3), [Sampler(0.0, 1.0, random.Random(1))])
    assert token == 1
    assert logprob == pytest.approx(math.log(0.5), abs=1e-5)


def test_draws_follow_the_distribution_and_the_temperature() -> None:
    logits = _logits(0.7, 0.2, 0.1)
    plain, cool = _draws(logits, 1.0, 1.0, 3000), _draws(logits, 0.5, 1.0, 3000)
    assert plain[0] / 3000 == pytest.approx(0.7, abs=0.04)
    assert plain[2] / 3000 == pytest.approx(0.1, abs=0.03)
    assert cool[0] / 3000 == pytest.approx(0.49 / 0.54, abs=0.03)


@pytest.mark.parametrize(("top_p", "allowed"), [(0.5, {0}), (0.75, {0, 1}), (0.95, {0, 1, 2})])
def test_the_nucleus_is_the_smallest_best_set(top_p: float, allowed: set[int]) -> None:
    assert set(_draws(_logits(0.7, 0.2, 0.1), 1.0, top_p, 600)) == allowed


def test_the_logprob_of_a_draw_ignores_temperature_and_nucleus() -> None:
    from instar.engine.sampling import Sampler, choose

    [(token, logprob)] = choose(_logits(0.7, 0.2, 0.1), [Sampler(0.3, 0.6, random.Random(4))])
    assert token == 0
    assert logprob == pytest.approx(math.log(0.7), abs=1e-5)


def test_block_keys_name_all_that_came_before_and_spare_the_last_token() -> None:
    from instar.engine.prefix import BLOCK, block_keys

    tokens = list(range(3 * BLOCK))
    assert len(block_keys(tokens)) == 2
    assert len(block_keys([*tokens, 1])) == 3
    other = [99, *tokens[1:]]
    assert not set(block_keys(tokens)) & set(block_keys(other))
    assert block_keys(tokens)[:1] == block_keys(tokens[: BLOCK + 1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with random weights, as transformers saves it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    where: Path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(where)
    return where


def test_passes_equal_the_reference_for_whole_split_and_batched_prompts(folder: Path) -> None:
    from transformers import LlamaForCausalLM

    from instar.engine.llama import Llama

    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = Llama(folder, torch.float32)
    prompts = [[1, 5, 9, 3], [7], [2, 2, 8, 30, 11, 60, 4]]

    def expected(ids: list[int]) -> Any:
        with torch.no_grad():
            return reference(torch.tensor([ids])).logits[0, -1]

    with torch.inference_mode():
        store = model.new_store(4)
        store.reserve(16)
        logits = model.prefill(store, [0, 1, 2], [0, 0, 0], prompts)
        for row, prompt in enumerate(prompts):
            assert torch.allclose(logits[row], expected(prompt), atol=1e-4)
        logits = model.decode(store, [len(p) for p in prompts], [40, 41, 42])
        for row, prompt in enumerate(prompts):
            assert torch.allclose(logits[row], expected([*prompt, 40 + row]), atol=1e-4)
        model.prefill(store, [3], [0], [prompts[2][:3]])
        split = model.prefill(store, [3], [3], [prompts[2][3:]])
        assert torch.allclose(split[0], expected(prompts[2]), atol=1e-4)


def test_another_family_is_refused_with_its_name(folder: Path, tmp_path: Path) -> None:
    from instar.engine.llama import Llama

    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    with pytest.raises(ValueError, match="'mamba'"):
        Llama(tmp_path, torch.float32)


def test_many_requests_through_few_slots_equal_each_alone(folder: Path) -> None:
    """Slots are refilled and compacted, prefixes are shared, memory is bounded; nothing changes."""
    from instar.engine.llama import Llama
    from instar.engine.sampling import Sampler
    from instar.engine.scheduler import Generation, Scheduler, SchedulerLimits

    model = Llama(folder, torch.float32)
    rng = random.Random(3)
    shared = [rng.randrange(1, 64) for _ in range(40)]
    prompts = [[*shared[: rng.randrange(1, 40)], rng.randrange(1, 64)] for _ in range(24)]

    def run(slots: int, prefix_bytes: int) -> list[list[int]]:
        limits = SchedulerLimits(
            slots=slots, prefix_bytes=prefix_bytes, prefill_tokens=64, store_tokens=150
        )
        scheduler = Scheduler(model, None, lambda ids: "".join(map(str, ids)), limits)
        left = threading.Semaphore(0)
        generations = [
            Generation(
                prompt=prompt,
                sampler=Sampler(0.0, 1.0, random.Random(0)),
                max_tokens=3 + index % 9,
                stop=(),
                end_ids=frozenset({0}),
                done=lambda _: left.release(),
            )
            for index, prompt in enumerate(prompts)
        ]
        scheduler.start()
        for generation in generations:
            scheduler.submit(generation)
        for _ in generations:
            assert left.acquire(timeout=60)
        scheduler.stop(timeout_s=60)
        assert all(g.finish in ("stop", "length") for g in generations)
        return [g.tokens for g in generations]

    alone = run(1, 0)
    assert run(5, 0) == alone
    assert run(5, 2**20) == alone


def test_a_stopped_scheduler_answers_what_comes_later(folder: Path) -> None:
    from instar.engine.llama import Llama
    from instar.engine.sampling import Sampler
    from instar.engine.scheduler import EmbeddingJob, Generation, Scheduler, SchedulerLimits

    limits = SchedulerLimits(slots=1, prefix_bytes=0)
    scheduler = Scheduler(Llama(folder, torch.float32), None, lambda ids: "", limits)
    scheduler.start()
    scheduler.stop(timeout_s=60)
    told: list[Any] = []
    sampler = Sampler(0.0, 1.0, random.Random(0))
    scheduler.submit(Generation([1], sampler, 4, (), frozenset(), told.append))
    scheduler.submit_embedding(EmbeddingJob(["x"], lambda vectors, error: told.append(error)))
    assert told[0].finish == "cancelled"
    assert "ended" in told[1]
    assert not scheduler.alive
