"""Bad input by HTTP: answered with 422 and the limit, before any parser chokes; nothing stored."""

from __future__ import annotations

from typing import Any

import pytest

_JSON = {"Content-Type": "application/json"}
_TABLES = ("artifact", "version", "blob", "audit_event")


def _rows(database: Any) -> list[Any]:
    return [database.query(f"select count(*) from {table}") for table in _TABLES]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "more than 200 objects"),
        (b'{"content": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "more than 200 objects"),
        (b"[" * 1_000_000, "more than 200 objects"),
        (b'{"content": "\xff\xfe"}', "not UTF-8: byte 13 is 0xff"),
        (b'{"content": "a\\u0000b"}', "NUL"),
        (b'{"content": "\\ud800"}', "half of a character|half a character|surrogate"),
        (b'{"content": NaN}', "(?i)nan|finite"),
        (b'{"content": "' + b"x" * 5_000_001 + b'"}', "bytes.*(limit|at most)"),
        (b'{"content": "x", "reason": "' + b"x" * 100_000 + b'"}', "at most|limit|reason"),
    ],
)
def test_contents_that_cannot_be_stored_are_answered_with_the_limit(
    api: Any, database: Any, body: bytes, words: str
) -> None:
    import re

    client = api.client("admin")
    before = _rows(database)
    answer = client.post("/v1/artifacts/prompt/odd/versions", content=body, headers=_JSON)
    assert answer.status_code == 422, answer.text[:500]
    problem = answer.json()
    assert problem["type"] == "urn:instar:problem:validation"
    assert re.search(words, problem["detail"]), problem["detail"][:500]
    assert _rows(database) == before


@pytest.mark.parametrize(
    "name",
    ["..%2Fetc", "a%5Cb", "C:x", ".git", "con", "a%20b", "p%D0%B0ypal", "a%2Fb%2Fc", "x" * 300],
)
def test_names_that_cannot_be_are_answered_with_422(api: Any, database: Any, name: str) -> None:
    client = api.client("admin")
    before = _rows(database)
    answer = client.post(f"/v1/artifacts/prompt/{name}/versions", json={"content": "Hi."})
    assert answer.status_code == 422, answer.text
    assert "cannot be the name of a prompt" in answer.json()["detail"]
    assert _rows(database) == before


def test_a_name_that_looks_like_another_is_answered_with_422(api: Any) -> None:
    client = api.client("admin")
    made = client.post("/v1/artifacts/prompt/greeting/versions", json={"content": "Hi."})
    assert made.status_code == 201, made.text
    answer = client.post("/v1/artifacts/prompt/Greeting/versions", json={"content": "Hi."})
    assert answer.status_code == 422
    assert "looks like 'greeting'" in answer.json()["detail"]


def test_unknown_names_are_answered_with_the_nearest(api: Any) -> None:
    client = api.client("admin")
    client.post("/v1/artifacts/prompt/greeting/versions", json={"content": "Hi."})
    for path, words in (
        ("/v1/artifacts/prompt/greting/versions/1", "Did you mean 'greeting'"),
        ("/v1/artifacts/promt/greeting/versions/1", "'prompt'"),
        ("/v1/artifacts/prompt/greeting/versions/7", "The nearest: 1"),
        ("/v1/artifacts/prompt/greeting/versions/live", "Its labels: none"),
    ):
        answer = client.get(path)
        assert answer.status_code == 404, answer.text
        assert words in answer.json()["detail"], answer.json()["detail"]


def test_deep_bodies_are_refused_on_every_route(api: Any) -> None:
    client = api.client("admin")
    deep = b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for path in ("/v1/agents", "/v1/task-sets", "/v1/chat/completions", "/v1/evolution-runs"):
        answer = client.post(path, content=deep, headers=_JSON)
        assert answer.status_code == 422, (path, answer.text[:300])
    # Brackets inside of a text are no depth.
    words = {"content": "[" * 10_000 + '"{' + "{" * 10_000}
    answer = client.post("/v1/artifacts/prompt/brackets/versions", json=words)
    assert answer.status_code == 201, answer.text[:300]
