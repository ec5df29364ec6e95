"""Odd requests on every route: never a server error, never a status that OpenAPI does not name."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import quote

import pytest

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TEXTS = [
    "desk",
    "production",
    "1",
    "0",
    "-1",
    "99999999999999999999",
    "latest",
    "a b",
    "ä🦋",
    "..",
    "%",
    "'; drop table run; --",
    "x" * 300,
    "\x00",
    "\n",
    "01890000-0000-7000-8000-000000000000",
    "agent",
    "prompt",
    "desk/instructions",
    "a@b",
]
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    1e308,
    "",
    "x",
    "\x00",
    "\ud800",
    [],
    {},
    [None],
    {"a": {"b": []}},
    "1" * 5000,
]


class Fuzzer:
    """Makes requests from the OpenAPI document, half of them nearly right."""

    def __init__(self, document: dict[str, Any], seed: int) -> None:
        self.document = document
        self.random = random.Random(seed)

    def path(self, template: str) -> str:
        """A path with every place filled."""
        for name in [part[1:].split("}")[0] for part in template.split("/") if part[:1] == "{"]:
            text = self.random.choice(TEXTS)
            template = template.replace("{" + name + "}", quote(text, safe=""), 1)
        return template

    def query(self, operation: dict[str, Any]) -> dict[str, str]:
        """Query values for some of the parameters."""
        names = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
        return {name: self.random.choice(TEXTS) for name in names if self.random.random() < 0.4}

    def body(self, operation: dict[str, Any]) -> Any:
        """A body that follows the schema with one thing wrong, or nothing like it."""
        content = operation.get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        if schema is None:
            return None
        if self.random.random() < 0.2:
            return self.random.choice(VALUES)
        return self.value(schema, 0)

    def value(self, schema: dict[str, Any], depth: int) -> Any:
        """A value of a schema, or now and then something else."""
        if depth > 6 or self.random.random() < 0.08:
            return self.random.choice(VALUES)
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.value(self.document["components"]["schemas"][name], depth + 1)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self.value(self.random.choice(schema[key]), depth + 1)
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        match schema.get("type"):
            case "object":
                known = schema.get("properties", {})
                wanted = set(schema.get("required", ()))
                chosen = {
                    name: self.value(part, depth + 1)
                    for name, part in known.items()
                    if name in wanted or self.random.random() < 0.4
                }
                if not known:
                    chosen = {"desk": self.value(schema.get("additionalProperties") or {}, depth)}
                return chosen
            case "array":
                return [self.value(schema.get("items", {}), depth + 1)]
            case "integer" | "number":
                return self.random.choice([0, 1, 2, 50])
            case "boolean":
                return self.random.random() < 0.5
            case "string":
                return self.random.choice(TEXTS)
            case _:
                return self.random.choice(VALUES)


@pytest.mark.parametrize("seed", range(2))
def test_no_request_makes_the_service_fail(api: Any, agent_body: Any, seed: int) -> None:
    client = api.client("admin")
    client.post("/v1/agents", json=agent_body(label="production")).raise_for_status()
    document = client.get("/openapi.json").json()
    fuzzer = Fuzzer(document, seed)
    for template, methods in document["paths"].items():
        for method, operation in methods.items():
            for _ in range(4):
                path, query = fuzzer.path(template), fuzzer.query(operation)
                body = fuzzer.body(operation)
                try:
                    answer = client.request(method, path, params=query, json=body)
                except UnicodeEncodeError:
                    continue  # a lone surrogate cannot even be sent by this client
                told = (method, path, query, str(body)[:500], answer.status_code, answer.text[:500])
                if template == "/readyz":
                    continue  # this service has no broker
                documented = set(operation["responses"]) | {"405"}  # '..' leads to other routes
                assert answer.status_code < 500 or answer.status_code == 502, told
                assert str(answer.status_code) in documented, told
