"""The litellm client against a provider that really speaks HTTP: retries, errors, tools, cost."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from instar.models.base import ModelReply, ModelRequest
from instar.models.endpoints import resolve_endpoint
from instar.models.litellm_client import INVALID_ARGUMENTS, LitellmClient
from instar.settings import ModelPrice, Settings
from instar_core.base import JsonValue
from instar_core.errors import ContextOverflow, ModelError, UserError
from instar_core.messages import Message, Sampling, ToolCall, ToolDefinition

Answer = tuple[int, dict[str, Any], dict[str, str]]
MODEL = "openai/house-model"
CANARY = "sk-canary0123456789abcdef"


class Provider:
    """A provider that gives prepared answers in order and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                provider.asked.append(json.loads(body))
                status, answer, headers = provider.answers.pop(0)
                payload = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {**headers, "content-type": "application/json"}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def provider() -> Iterator[Provider]:
    served = Provider()
    yield served
    served.close()


def _said(content: str | None = "fine", calls: list[dict[str, Any]] | None = None) -> Answer:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "house-model-2026-01",
        "system_fingerprint": "fp_7",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 40},
        },
    }
    return 200, body, {}


def _failed(status: int, message: str, headers: dict[str, str] | None = None) -> Answer:
    return status, {"error": {"message": message, "type": "x", "code": "x"}}, headers or {}


def _ask(
    provider: Provider, request: ModelRequest | None = None, attempts: int = 3
) -> tuple[ModelReply, list[float]]:
    settings = Settings()
    settings.models.api_base[MODEL] = provider.base
    settings.models.max_attempts = attempts
    settings.models.max_wait_s = 30.0
    settings.models.prices[MODEL] = ModelPrice(input=10.0, output=100.0, cache_read=1.0)
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    client = LitellmClient(resolve_endpoint(MODEL, settings), settings, sleep=note)
    return asyncio.run(client.complete(request or _request())), waits


def _request(**changes: Any) -> ModelRequest:
    base: dict[str, Any] = {
        "model": MODEL,
        "messages": (Message(role="user", content="hello"),),
        "sampling": Sampling(temperature=0.5, max_tokens=33, stop=("END",)),
        "seed": 7,
    }
    return ModelRequest(**{**base, **changes})


def test_a_reply_has_disjoint_usage_its_cost_and_who_answered(provider: Provider) -> None:
    provider.answers = [_said()]
    reply, waits = _ask(provider)
    usage = reply.usage
    assert reply.message.content == "fine"
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (60, 40, 20)
    assert usage.cost_usd == pytest.approx((60 * 10 + 40 * 1 + 20 * 100) / 1e6)
    assert usage.cost_known
    assert usage.wall_s > 0
    assert "house-model-2026-01 fp_7" in reply.fingerprint
    assert provider.base in reply.fingerprint
    assert waits == []
    asked = provider.asked[0]
    assert (asked["max_tokens"], asked["seed"], asked["stop"]) == (33, 7, ["END"])


def test_limits_and_failures_that_pass_are_repeated_as_asked(provider: Provider) -> None:
    provider.answers = [
        _failed(429, "slow down", {"retry-after": "7"}),
        _failed(503, "busy"),
        _said(),
    ]
    reply, waits = _ask(provider)
    assert reply.message.content == "fine"
    assert waits[0] >= 7.0
    assert 0 < waits[1] < 7.0
    assert len(provider.asked) == 3


def test_what_does_not_pass_is_a_model_error_with_the_count(provider: Provider) -> None:
    provider.answers = [_failed(500, "broken")] * 3
    with pytest.raises(ModelError, match="failed 3 times"):
        _ask(provider)


def test_an_endless_retry_after_is_not_waited_for(provider: Provider) -> None:
    provider.answers = [_failed(429, "tomorrow", {"retry-after": "86400"})]
    with pytest.raises(ModelError, match="failed 1 time:"):
        _ask(provider)


@pytest.mark.parametrize(
    ("status", "match"), [(400, "refused the request"), (401, "credentials"), (404, "refused")]
)
def test_a_refusal_is_the_users_error_and_not_repeated(
    provider: Provider, status: int, match: str
) -> None:
    provider.answers = [_failed(status, "no")]
    with pytest.raises(UserError, match=match):
        _ask(provider)
    assert len(provider.asked) == 1


def test_a_prompt_that_does_not_fit_is_the_agents_doing(provider: Provider) -> None:
    provider.answers = [
        _failed(400, "This model's maximum context length is 8192 tokens, the prompt has 9000")
    ]
    with pytest.raises(ContextOverflow):
        _ask(provider)


def test_secrets_in_a_providers_words_are_masked(provider: Provider) -> None:
    provider.answers = [_failed(401, f"Incorrect API key provided: {CANARY}")]
    with pytest.raises(UserError) as caught:
        _ask(provider)
    assert CANARY not in str(caught.value)


def test_tools_go_out_and_calls_come_back(provider: Provider) -> None:
    arguments: dict[str, JsonValue] = {"queue": "harbor", "urgent": True}
    calls = [
        _call("a", "assign_queue", json.dumps(arguments)),
        _call("b", "assign_queue", "{not json"),
        _call("c", "assign_queue", "[1]"),
    ]
    provider.answers = [_said(None, calls)]
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"queue": {"type": "string"}},
    }
    tool = ToolDefinition(name="assign_queue", description="puts it there", parameters=parameters)
    earlier = (
        Message(role="user", content="go"),
        Message(role="assistant", tool_calls=(ToolCall(id="z", name="read", arguments={"id": 1}),)),
        Message(role="tool", content="text", tool_call_id="z"),
    )
    reply, _ = _ask(provider, _request(messages=earlier, tools=(tool,)))
    found = reply.message.tool_calls
    assert found[0] == ToolCall(id="a", name="assign_queue", arguments=arguments)
    assert found[1].arguments == {INVALID_ARGUMENTS: "{not json"}
    assert found[2].arguments == {INVALID_ARGUMENTS: "[1]"}
    asked = provider.asked[0]
    assert asked["tools"][0]["function"]["parameters"] == parameters
    assert asked["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"id": 1}'
    assert asked["messages"][2]["tool_call_id"] == "z"


def test_a_reservation_covers_what_the_request_can_cost() -> None:
    settings = Settings()
    settings.models.prices[MODEL] = ModelPrice(input=10.0, output=100.0)
    client = LitellmClient(resolve_endpoint(MODEL, settings), settings)
    amount = client.reserve_for(_request())
    assert amount.tokens >= 33 + 3
    assert amount.cost_usd >= 33 * 100 / 1e6


def _call(name: str, function: str, arguments: str) -> dict[str, Any]:
    return {
        "id": name,
        "type": "function",
        "function": {"name": function, "arguments": arguments},
    }
