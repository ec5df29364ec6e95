"""Cached tokens are counted once, whatever a provider means by its prompt count (S95)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from instar.models.usage import normalise_usage
from instar.settings import prepare_process

Report = Mapping[str, Any]
Raw = Any  # a provider's own record; litellm types each differently


def _openai(raw: Raw) -> Report:
    from litellm.types.utils import Usage

    dumped: Report = Usage(**raw).model_dump()
    return dumped


def _anthropic(raw: Raw) -> Report:
    from litellm.llms.anthropic.chat.transformation import AnthropicConfig

    dumped: Report = AnthropicConfig().calculate_usage(raw, None).model_dump()
    return dumped


def _bedrock(raw: Raw) -> Report:
    from litellm.llms.bedrock.chat.converse_transformation import AmazonConverseConfig

    dumped: Report = AmazonConverseConfig().transform_usage(raw).model_dump()
    return dumped


def _gemini(raw: Raw) -> Report:
    from litellm.llms.vertex_ai.gemini.vertex_and_google_ai_studio_gemini import VertexGeminiConfig

    record: Raw = {"usageMetadata": raw}
    dumped: Report = VertexGeminiConfig._calculate_usage(record).model_dump()
    return dumped


# Usage records in each provider's own words, read by litellm's own code for that provider; then
# (uncached, cache read, cache write, output) and the total that the provider bills.
CASES: list[tuple[str, Callable[[Report], Report], Report, tuple[int, int, int, int], int]] = [
    (
        "openai",
        _openai,
        {
            "prompt_tokens": 2006,
            "completion_tokens": 300,
            "total_tokens": 2306,
            "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 192},
        },
        (86, 1920, 0, 300),
        2306,
    ),
    (
        "anthropic",
        _anthropic,
        {
            "input_tokens": 12,
            "cache_read_input_tokens": 2000,
            "cache_creation_input_tokens": 300,
            "output_tokens": 50,
        },
        (12, 2000, 300, 50),
        2362,
    ),
    (
        "anthropic, nothing cached",
        _anthropic,
        {"input_tokens": 400, "output_tokens": 7},
        (400, 0, 0, 7),
        407,
    ),
    (
        "bedrock",
        _bedrock,
        {
            "inputTokens": 10,
            "outputTokens": 20,
            "totalTokens": 1530,
            "cacheReadInputTokens": 1000,
            "cacheWriteInputTokens": 500,
        },
        (10, 1000, 500, 20),
        1530,
    ),
    (
        "gemini",
        _gemini,
        {
            "promptTokenCount": 1000,
            "cachedContentTokenCount": 800,
            "candidatesTokenCount": 50,
            "thoughtsTokenCount": 30,
            "totalTokenCount": 1080,
        },
        (200, 800, 0, 80),
        1080,
    ),
    (
        "deepseek",
        _openai,
        {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "total_tokens": 120,
            "prompt_cache_hit_tokens": 64,
            "prompt_cache_miss_tokens": 36,
        },
        (36, 64, 0, 20),
        120,
    ),
    (
        "xai, reasoning beside the output",
        _openai,
        {
            "prompt_tokens": 100,
            "completion_tokens": 10,
            "total_tokens": 150,
            "completion_tokens_details": {"reasoning_tokens": 40},
        },
        (100, 0, 0, 50),
        150,
    ),
]


@pytest.mark.parametrize(
    ("read", "raw", "parts", "total"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_s95_parts_do_not_overlap_and_sum_to_the_providers_total(
    read: Callable[[Report], Report], raw: Report, parts: tuple[int, int, int, int], total: int
) -> None:
    prepare_process()
    usage = normalise_usage(read(raw))
    found = (
        usage.input_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.output_tokens,
    )
    assert found == parts
    assert usage.tokens == total
    assert usage.model_calls == 1


def test_cached_tokens_outside_of_the_prompt_count() -> None:
    usage = normalise_usage(
        {
            "prompt_tokens": 500,
            "completion_tokens": 10,
            "total_tokens": 710,
            "prompt_tokens_details": {"cached_tokens": 200},
        }
    )
    assert (usage.input_tokens, usage.cache_read_tokens, usage.tokens) == (500, 200, 710)


@pytest.mark.parametrize(
    "broken",
    [{}, {"prompt_tokens": None, "completion_tokens": -3}, {"prompt_tokens_details": "none"}],
)
def test_a_broken_record_is_no_negative_number(broken: Report) -> None:
    assert normalise_usage(broken).tokens == 0
