"""Secrets are masked by value, by key name and by shape (S101)."""

from __future__ import annotations

import pytest

from instar.redaction import MASK, redact, redact_text, register_secret

CANARY = "canary-9f8e7d6c5b4a"


def test_a_registered_value_is_masked_wherever_it_appears() -> None:
    register_secret(CANARY)
    shown = redact({"note": f"see {CANARY}!", "list": [f"x{CANARY}x", 3, None]})
    assert CANARY not in str(shown)
    assert shown["note"] == f"see {MASK}!"


def test_values_of_secret_environment_variables_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", "env-value-12345")
    monkeypatch.setenv("HARMLESS", "ordinary-value")
    text = redact_text("used env-value-12345 and ordinary-value")
    assert text == f"used {MASK} and ordinary-value"


@pytest.mark.parametrize(
    "name",
    ["api_key", "OPENAI_API_KEY", "x-api-key", "Authorization", "client_secret", "password",
     "access_token", "refreshToken", "token", "hf_token", "private_key", "Cookie"],
)  # fmt: skip
def test_whole_values_under_secret_names_go(name: str) -> None:
    assert redact({name: "anything at all"}) == {name: MASK}


@pytest.mark.parametrize(
    "name", ["input_tokens", "max_tokens", "tokens", "prompt_token_ids", "keyword", "monkey"]
)
def test_ordinary_names_stay(name: str) -> None:
    assert redact({name: 12}) == {name: 12}


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abcdefghijklmnop",
        "key sk-proj-abcdefghijklmnopqrstuvwx is wrong",
        "postgresql://user:hunter22@host/db",
        "https://user:hunter22@index.example/simple",
        "--api-key=abcdefgh12345",
        '{"client_secret": "abcdefgh12345"}',
        "ghp_abcdefghijklmnopqrstuv0123456789",
    ],
)
def test_the_usual_shapes_are_masked(text: str) -> None:
    shown = redact_text(text)
    assert MASK in shown
    for secret in ("abcdefgh", "hunter22"):
        assert secret not in shown


def test_ordinary_text_is_left_alone() -> None:
    text = "The token count is 12; see http://127.0.0.1:8322/v1 and the secretary's note."
    assert redact_text(text) == text


def test_short_values_are_not_taken() -> None:
    register_secret("the")
    assert redact_text("the cat") == "the cat"
