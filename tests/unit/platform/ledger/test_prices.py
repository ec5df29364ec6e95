"""An unknown price is a conservative estimate with a flag, never zero (S23, S99)."""

from __future__ import annotations

import sys

import pytest

from instar.ledger.prices import FREE, UNKNOWN, Price, price_of, priced
from instar.settings import ModelPrice, Settings
from instar_core.usage import Usage

USED = Usage(input_tokens=1000, cache_read_tokens=2000, cache_write_tokens=500, output_tokens=100)


def test_a_listed_model_has_its_list_price_for_each_kind_of_token() -> None:
    price = price_of("anthropic/claude-sonnet-4-5", Settings())
    assert price.known
    cost = priced(USED, price).cost_usd
    assert cost == pytest.approx((1000 * 3 + 2000 * 0.3 + 500 * 3.75 + 100 * 15) / 1e6)


def test_the_bare_name_is_found_under_its_provider_only() -> None:
    assert price_of("openai/gpt-4o-mini", Settings()).known
    assert not price_of("mistral/gpt-4o-mini", Settings()).known


def test_a_cache_without_a_price_costs_as_much_as_input() -> None:
    price = price_of("openai/gpt-4o-mini", Settings())
    assert price.cache_write == price.input


def test_s23_s99_unknown_is_dear_and_says_so() -> None:
    price = price_of("openai/a-model-of-tomorrow", Settings())
    spent = priced(USED, price)
    assert price == UNKNOWN
    assert spent.cost_usd > 0
    assert not spent.cost_known


def test_s23_s99_a_sum_with_one_unknown_cost_is_unknown() -> None:
    assert not (priced(USED, UNKNOWN) + priced(USED, FREE)).cost_known


def test_own_prices_come_first() -> None:
    settings = Settings()
    settings.models.prices["openai/mine"] = ModelPrice(input=2.0, output=4.0)
    price = price_of("openai/mine", settings)
    assert price.known
    assert price.cost_of(USED) == pytest.approx((3500 * 2 + 100 * 4) / 1e6)


def test_the_local_model_is_free_and_known() -> None:
    assert priced(USED, price_of("local/smollm2-135m-instruct", Settings())) == USED


def test_long_prompts_reach_the_dearer_tier_and_the_bound_covers_it() -> None:
    price = Price(
        input=1.0, cache_read=0.1, cache_write=1.25, output=5.0, tiers=((200_000, 2.0, 7.0),)
    )
    short, long = Usage(input_tokens=200_000), Usage(input_tokens=200_001, output_tokens=1)
    assert price.cost_of(short) == 200_000.0
    assert price.cost_of(long) == 400_002.0 + 7.0
    assert price.bound(200_001, 1) >= price.cost_of(long)


@pytest.mark.parametrize("model", ["openai/gpt-4o", "gemini/gemini-2.5-pro", "openai/nobody"])
def test_the_bound_is_never_below_the_cost(model: str) -> None:
    price = price_of(model, Settings())
    assert price.bound(3500, 100) >= price.cost_of(USED)


def test_prices_are_read_without_importing_litellm() -> None:
    import subprocess

    code = (
        "import sys\n"
        "from instar.ledger.prices import price_of\n"
        "from instar.settings import Settings\n"
        "assert price_of('openai/gpt-4o', Settings()).known\n"
        "assert 'litellm' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
