"""Usage: turns what providers report into four kinds of tokens that do not overlap.

Providers differ in whether cached tokens are part of the prompt's count and whether reasoning is
part of the output's; litellm evens out much of that, not all. The provider's own total decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from instar_core.usage import Usage

__all__ = ["normalise_usage"]


def normalise_usage(reported: Mapping[str, Any]) -> Usage:
    """Disjoint token counts from a usage record in OpenAI's shape, as litellm returns it.

    Args:
        reported: ``prompt_tokens``, ``completion_tokens``, ``total_tokens`` and details. Cached and
            written tokens may be included in ``prompt_tokens`` (OpenAI, Gemini) or not (Anthropic,
            Bedrock, where litellm has not added them).

    Returns:
        Usage whose ``tokens`` equals the provider's total, where it gives one that is not too
        small; one model call, no cost yet.
    """
    details = _mapping(reported.get("prompt_tokens_details"))
    prompt, output = _count(reported, "prompt_tokens"), _count(reported, "completion_tokens")
    total = _count(reported, "total_tokens")
    read = _count(details, "cached_tokens") or _count(reported, "cache_read_input_tokens")
    write = (
        _count(details, "cache_creation_tokens")
        or _count(details, "cache_write_tokens")
        or _count(reported, "cache_creation_input_tokens")
    )
    apart = read + write > prompt or (read + write > 0 and total == prompt + output + read + write)
    uncached = prompt if apart else prompt - read - write
    # A total above the parts holds output that was not named, such as hidden reasoning.
    output += max(0, total - (uncached + read + write + output))
    return Usage(
        input_tokens=uncached,
        cache_read_tokens=read,
        cache_write_tokens=write,
        output_tokens=output,
        model_calls=1,
    )


def _count(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    return max(0, int(value)) if isinstance(value, int | float) else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
