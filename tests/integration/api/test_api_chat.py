"""Chat completions with the official OpenAI client against a live server."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.postgres


@pytest.fixture
def client(api: Any, agent_body: Any) -> Any:
    """The official client, with an agent ``desk`` behind it."""
    admin = api.client("admin")
    admin.post("/v1/agents", json=agent_body(label="production")).raise_for_status()
    admin.post("/v1/agents", json=agent_body(version="two")).raise_for_status()
    made = openai.OpenAI(base_url=f"{api.url}/v1", api_key=api.keys["operator"], max_retries=0)
    yield made
    made.close()


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_the_labelled_version_answers_and_a_moved_label_changes_the_answer(
    client: Any, api: Any
) -> None:
    admin = api.client("admin")
    url = "/v1/artifacts/agent/desk/labels/production"
    for target, words in ((1, "one"), (2, "two"), (1, "one")):
        admin.put(url, json={"version": target}, headers={"If-Match": "*"}).raise_for_status()
        for model in ("agent/desk@production", "agent/desk"):
            answer = client.chat.completions.create(model=model, messages=user("hello"))
            assert answer.choices[0].message.content == f"I am version {words}."
            assert answer.choices[0].finish_reason == "stop"
            assert answer.system_fingerprint == f"version-{target}"
            assert answer.model == model
            assert answer.usage.total_tokens == (
                answer.usage.prompt_tokens + answer.usage.completion_tokens
            )
    pinned = client.chat.completions.create(model="agent/desk@2", messages=user("hello"))
    assert pinned.choices[0].message.content == "I am version two."
    run_id = pinned.id.removeprefix("chatcmpl-")
    assert admin.get(f"/v1/runs/{run_id}").json()["version"] == 2


def test_s91_a_stream_has_one_terminal_chunk_and_spells_the_answer(client: Any) -> None:
    text = "ä🦋" * 700
    chunks = list(
        client.chat.completions.create(
            model="agent/desk", messages=user(f"say {text}"), stream=True
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    finishes = [chunk.choices[0].finish_reason for chunk in chunks]
    assert finishes[-1] == "stop"
    assert finishes.count(None) == len(finishes) - 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1


def test_s92_usage_comes_once_in_the_last_chunk_when_asked_for(client: Any) -> None:
    plain = client.chat.completions.create(model="agent/desk", messages=user("hello"), stream=True)
    assert all(chunk.usage is None for chunk in plain)
    chunks = list(
        client.chat.completions.create(
            model="agent/desk",
            messages=user("hello"),
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert [chunk.usage is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1].choices == []
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_s88_s91_the_raw_stream_ends_with_done_and_is_not_buffered(api: Any, client: Any) -> None:
    body = {"model": "agent/desk", "messages": user("hello"), "stream": True}
    with api.client("operator").stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in answer.headers
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    assert lines.count("data: [DONE]") == 1
    for line in lines[:-1]:
        json.loads(line.removeprefix("data: "))


def test_s89_a_comment_keeps_the_stream_open_while_the_agent_works(
    api: Any, client: Any, scripts: Any, agent_body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("instar.api.chat.HEARTBEAT_S", 0.05)
    rules = {"rules": [{"reply": "late", "delay_s": 0.4}]}
    (scripts / "slow.json").write_text(json.dumps(rules))
    slow = agent_body(name="slow", label="production")
    slow["harness"]["model"] = "scripted/slow"
    api.client("admin").post("/v1/agents", json=slow).raise_for_status()
    body = {"model": "agent/slow", "messages": user("hello"), "stream": True}
    with api.client("operator").stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = list(answer.iter_lines())
    assert sum(line.startswith(":") for line in lines) >= 1
    assert lines.count("data: [DONE]") == 1


def test_errors_are_those_the_official_client_knows(client: Any, api: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="no label"):
        client.chat.completions.create(model="agent/desk@nowhere", messages=user("hello"))
    with pytest.raises(openai.NotFoundError, match="GET /v1/models"):
        client.chat.completions.create(model="gpt-4", messages=user("hello"))
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="agent/nobody", messages=user("hello"), stream=True)
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(
            model="agent/desk",
            messages=user("hello"),
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        )
    with pytest.raises(openai.UnprocessableEntityError):
        client.chat.completions.create(model="agent/desk", messages=[])
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="agent/desk", messages=user("fail please"))
    assert caught.value.status_code == 502
    stranger = openai.OpenAI(base_url=f"{api.url}/v1", api_key="instar_wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    reader = openai.OpenAI(base_url=f"{api.url}/v1", api_key=api.keys["viewer"], max_retries=0)
    with reader, pytest.raises(openai.PermissionDeniedError):
        reader.chat.completions.create(model="agent/desk", messages=user("hello"))


def test_a_failure_in_mid_stream_is_told_in_the_stream(api: Any, client: Any) -> None:
    body = {"model": "agent/desk", "messages": user("fail please"), "stream": True}
    with api.client("operator").stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert json.loads(lines[0].removeprefix("data: "))["error"]["code"] == "model"
    assert lines[-1] == "data: [DONE]"
    with pytest.raises(openai.APIError):
        list(
            client.chat.completions.create(
                model="agent/desk", messages=user("fail please"), stream=True
            )
        )


def test_models_are_agents_at_their_labels(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["agent/desk@production"]


def test_parts_of_text_and_a_conversation_are_understood(client: Any) -> None:
    answer = client.chat.completions.create(
        model="agent/desk",
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": [{"type": "text", "text": "say parts"}]},
        ],
        temperature=0.3,
        seed=7,
    )
    assert answer.choices[0].message.content == "parts"
