"""The engine's HTTP face without a model: it says what is missing, and refuses what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from instar.engine.app import MAX_BODY_BYTES, create_app
from instar.engine.host import EngineConfig

CHAT = "/v1/chat/completions"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    app = create_app(EngineConfig(data_dir=tmp_path))
    with TestClient(app, raise_server_exceptions=True) as served:
        yield served


def _body(**changes: Any) -> dict[str, Any]:
    base = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": "hello"}],
    }
    return {**base, **changes}


def test_health_says_that_the_model_is_missing_and_how_to_get_it(client: TestClient) -> None:
    response = client.get("/healthz", params={"wait_s": 30})
    assert response.status_code == 503
    report = response.json()
    assert report["state"] == "missing"
    assert "instar model install" in report["reason"]


def test_a_request_without_a_model_is_refused_with_the_same_words(client: TestClient) -> None:
    client.get("/healthz", params={"wait_s": 30})
    response = client.post(CHAT, json=_body())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_missing"
    assert "instar model install" in response.json()["error"]["message"]
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"temperature": 5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 1000}, "n"),
        ({"stop": ["x"] * 17}, "stop"),
    ],
)
def test_wrong_fields_are_named(client: TestClient, changes: dict[str, Any], field: str) -> None:
    response = client.post(CHAT, json=_body(**changes))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]


def test_another_model_is_not_found_and_the_served_one_is_named(client: TestClient) -> None:
    response = client.post(CHAT, json=_body(model="gpt-4o"))
    assert response.status_code == 404
    assert "smollm2-135m-instruct" in response.json()["error"]["message"]


def test_native_tools_are_refused_with_the_way_out(client: TestClient) -> None:
    response = client.post(CHAT, json=_body(tools=[{"type": "function"}]))
    assert response.json()["error"]["code"] == "tools_unsupported"


def test_no_json_is_a_clear_error(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    response = client.post(CHAT, content=b"{nonsense", headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_request"


def test_unknown_paths_answer_in_the_same_shape(client: TestClient) -> None:
    response = client.get("/v2/none")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "http_error"


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large_is_refused(client: TestClient, declared: bool) -> None:
    chunk = b"x" * 2**16
    count = MAX_BODY_BYTES // len(chunk) + 1

    def stream() -> Iterator[bytes]:
        for _ in range(count):
            yield chunk

    content: Any = chunk * count if declared else stream()
    response = client.post(CHAT, content=content)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


def test_the_app_without_a_model_never_imports_torch() -> None:
    import subprocess

    code = (
        "import sys, pathlib\n"
        "from instar.engine.app import create_app\n"
        "from instar.engine.host import EngineConfig\n"
        "create_app(EngineConfig(data_dir=pathlib.Path('/nowhere')))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
