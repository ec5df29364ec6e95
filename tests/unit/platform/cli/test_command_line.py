"""The command line: words for people, one JSON document for programs, exit codes, no tracebacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from instar.cli.client import path_of
from instar.cli.output import table


class Service(HTTPServer):
    """A small real HTTP server that answers what a test puts in, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, dict[str, str], Any]] = []


class Handler(BaseHTTPRequestHandler):
    """Answers by method and path."""

    def _answer(self) -> None:
        server = self.server
        assert isinstance(server, Service)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        asked = f"{self.command} {self.path}"
        server.asked.append((asked, dict(self.headers), body))
        status, content = server.answers.get(asked, (404, {"detail": f"no {asked}"}))
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    """The server, serving."""
    server = Service()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def instar(service: Service | None, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "INSTAR_API_KEY": "instar_test",
        "INSTAR_DATA_DIR": "/nonexistent/instar",
        **extra,
    }
    if service is not None:
        environment["INSTAR_URL"] = f"http://127.0.0.1:{service.server_port}"
    return subprocess.run(
        [sys.executable, "-m", "instar", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_a_cancelled_run_that_still_ends_is_not_called_running(service: Service) -> None:
    service.answers["POST /v1/evolution/runs/r1/cancel"] = (200, {"id": "r1", "state": "running"})
    done = instar(service, "evolve", "cancel", "r1")
    assert done.stdout == "run r1 was asked to stop; it ends in a moment\n", done.stderr


def test_what_was_imported_is_told_in_words(service: Service, tmp_path: Path) -> None:
    found = {"version": 1, "counts": {"train": 8, "sealed": 40}}
    service.answers["POST /v1/task-sets"] = (201, found)
    file = tmp_path / "tickets.jsonl"
    file.write_text("{}\n")
    done = instar(service, "tasks", "import", "tickets", str(file))
    assert done.stdout == "task set tickets has version 1: train: 8, sealed: 40\n", done.stderr


def test_lists_page_after_page_with_the_key(service: Service) -> None:
    row = {"name": "desk", "last_version": 2, "labels": {}, "created_at": "now"}
    service.answers["GET /v1/agents"] = (200, {"data": [row], "next": "k/2"})
    service.answers["GET /v1/agents?after=k%2F2"] = (200, {"data": [row], "next": None})
    done = instar(service, "agent", "list", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [row, row]
    assert service.asked[0][1]["Authorization"] == "Bearer instar_test"
    assert instar(service, "agent", "list").stdout.splitlines()[0].split() == [
        *("name", "last", "version", "labels", "created", "at")
    ]


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_a_decision_sends_its_reason_as_the_note_that_the_service_takes(
    service: Service, decision: str
) -> None:
    answer = {"id": "m1", "agent": "desk", "label": "production", "to_version": 2, "state": "x"}
    service.answers[f"POST /v1/proposals/p1/{decision}"] = (200, answer)
    done = instar(service, "evolve", decision, "p1", "--why", "seen and checked")
    assert done.returncode == 0, done.stderr
    assert service.asked[0][2] == {"note": "seen and checked"}


def test_a_start_sends_the_spec_under_an_idempotency_key(service: Service) -> None:
    service.answers["POST /v1/evolution/runs"] = (201, {"id": "r1", "state": "queued"})
    done = instar(
        service,
        *("evolve", "start", "desk", "--tasks", "tickets", "--evolver", "tf_grpo"),
        *("--rollouts", "150", "--seed", "7", "--config", '{"epochs": 2}'),
        *("--proposer", "openai/large"),
    )
    assert done.stdout == "run r1 is queued\n", done.stderr
    (_, headers, body) = service.asked[0]
    assert len(headers["Idempotency-Key"]) == 36
    assert body == {
        "agent": "desk",
        "task_set": "tickets",
        "evolver": "tf_grpo",
        "evolver_config": {"epochs": 2},
        "limit": {"rollouts": 150, "cost_usd": None, "wall_s": None},
        "seed": 7,
        "model": "openai/large",
    }


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [(400, "invalid", 2), (404, "not-found", 2), (409, "conflict", 2), (503, "store", 1)],
)
def test_a_problem_becomes_words_and_an_exit_code(
    service: Service, status: int, code: str, exit_code: int
) -> None:
    problem = {"type": f"urn:instar:problem:{code}", "detail": "It is so. Do that."}
    service.answers["POST /v1/evolution/runs/r1/cancel"] = (status, problem)
    done = instar(service, "evolve", "cancel", "r1")
    assert done.returncode == exit_code
    assert done.stderr == "error: It is so. Do that.\n"
    assert done.stdout == ""


def test_an_answer_that_is_no_problem_document_is_quoted(service: Service) -> None:
    service.answers["GET /v1/proposals"] = (502, b"<html>bad gateway</html>")
    done = instar(service, "evolve", "proposals")
    assert done.returncode == 1
    assert done.stderr == "error: the service answered 502: <html>bad gateway</html>\n"


def test_a_broken_tasks_file_names_the_line(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": "a"}\n{half\n', encoding="utf-8")
    words = "line 2: not JSON. Nothing was imported."
    problem = {"type": "urn:instar:problem:task-file", "detail": words}
    service.answers["POST /v1/task-sets"] = (422, problem)
    done = instar(service, "tasks", "import", "tickets", str(path))
    assert (done.returncode, done.stderr) == (2, f"error: {words}\n")
    assert service.asked[0][2]["jsonl"] == path.read_text(encoding="utf-8")


def test_rollback_undoes_the_newest_promotion_in_force(service: Service) -> None:
    rows = [
        {"id": "p3", "agent": "desk", "label": "production", "state": "rolled_back"},
        {"id": "p2", "agent": "desk", "label": "production", "state": "watching"},
        {"id": "p1", "agent": "desk", "label": "production", "state": "kept"},
    ]
    service.answers["GET /v1/promotions"] = (200, {"data": rows, "next": None})
    service.answers["POST /v1/promotions/p2/rollback"] = (200, {"id": "p2", "from_version": 1})
    done = instar(service, "artifact", "rollback", "agent", "desk", "--why", "worse")
    assert done.stdout == "agent desk: production names version 1 again\n", done.stderr
    assert service.asked[-1][2] == {"reason": "worse"}
    assert instar(service, "artifact", "rollback", "agent", "other").returncode == 2
    assert instar(service, "artifact", "rollback", "prompt", "desk").returncode == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evolve", "quote", "a", "--tasks", "t", "--config", "{half"], "--config is not JSON"),
        (["evolve", "status", "nope"], "no id of a run. See `instar evolve status`."),
        (["evolve", "undo", "nope", "--dry-run"], "no id of a run"),
        (["artifact", "settle", "agent", "a", "c1"], "Give --prefer learned"),
        (["agent", "create", "a", "--file", "/nonexistent.json"], "cannot read"),
        (["tasks", "import", "t", "/nonexistent.jsonl"], "cannot read"),
    ],
)
def test_a_persons_mistake_is_told_without_asking_the_service(
    service: Service, words: list[str], said: str
) -> None:
    done = instar(service, *words)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert service.asked == []


def test_an_agent_file_that_is_no_object_is_named(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text("[1]", encoding="utf-8")
    done = instar(service, "agent", "create", "a", "--file", str(path))
    assert done.returncode == 2 and "holds a list; an object is needed" in done.stderr
    path.write_text('{"a":\n 1,}', encoding="utf-8")
    done = instar(service, "agent", "create", "a", "--file", str(path))
    assert done.returncode == 2 and "line 2, column" in done.stderr


def test_a_service_that_is_not_there_is_named_with_the_remedy() -> None:
    done = instar(None, "agent", "list", INSTAR_URL="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "http://127.0.0.1:9 does not answer" in done.stderr
    assert "instar up" in done.stderr


def test_without_a_key_the_remedy_is_named() -> None:
    done = instar(None, "agent", "list", INSTAR_API_KEY="")
    assert done.returncode == 2
    assert "there is no API key" in done.stderr and "INSTAR_API_KEY" in done.stderr


def test_status_of_nothing_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    done = instar(None, "status", "--json", INSTAR_DATA_DIR=str(tmp_path / "none"))
    assert done.returncode == 3
    assert json.loads(done.stdout)["state"] == "stopped"
    assert not (tmp_path / "none").exists(), "asking makes nothing"
    done = instar(None, "down", INSTAR_DATA_DIR=str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (0, "it was not running\n")


def test_every_command_has_json() -> None:
    commands = [
        *(["up"], ["down"], ["status"], ["selfcheck"], ["demo"], ["model", "install"]),
        *(["evolve", name] for name in ("quote", "start", "status", "cancel", "approve")),
        *(["evolve", name] for name in ("proposals", "reject")),
        *(["agent", name] for name in ("list", "create", "run")),
        *(["tasks", name] for name in ("list", "import")),
        *(["artifact", name] for name in ("list", "show", "diff", "label", "rollback")),
    ]
    for words in commands:
        done = instar(None, *words, "--help")
        assert done.returncode == 0, done.stderr
        assert "--json" in done.stdout, words


def test_an_unforeseen_error_is_one_line() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import sys; sys.argv = ['instar', 'evolve', 'status']\n"
            "import instar.cli.client as client\n"
            "client.Client._find_url = lambda self: 1 / 0\n"
            "from instar.cli.main import main; main()",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ZeroDivisionError: division by zero\n")
    assert "INSTAR_DEBUG=1" in done.stderr and "Traceback" not in done.stderr


def test_paths_are_quoted_part_by_part() -> None:
    assert path_of("artifacts", "agent", "a/b c", "?x") == "/v1/artifacts/agent/a%2Fb%20c/%3Fx"


def test_tables_align_and_say_when_they_are_empty() -> None:
    assert table([], ("a",)) == "(none)"
    rows: list[dict[str, Any]] = [{"a_b": 1.23456, "c": None}, {"a_b": "long word", "c": 2}]
    assert table(rows, ("a_b", "c")) == "a b        c\n1.235      -\nlong word  2"


def test_a_tool_server_is_registered_from_a_file(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "desk.json"
    file.write_text('{"command": "desk", "env": {"API_KEY": "${secret:desk.API_KEY}"}}')
    shown = {
        "name": "desk",
        "kind": "mcp_stdio",
        "command": "desk",
        "args": ["--quiet"],
        "functions": [],
        "secret_ids": ["s1"],
        "test_bindings": [],
        "effect_free": False,
    }
    moved = [{"place": "env TOKEN", "name": "desk.TOKEN", "id": "s2"}]
    saved = {**shown, "moved": moved, "notices": []}
    service.answers["PUT /v1/mcp-servers/desk"] = (200, saved)
    done = instar(service, "mcp", "set", "desk", str(file))
    assert done.returncode == 0, done.stderr
    assert "env TOKEN looks like a secret and is kept as desk.TOKEN now" in done.stderr
    assert service.asked[-1][2] == {
        "name": "desk",
        "command": "desk",
        "env": {"API_KEY": "${secret:desk.API_KEY}"},
    }
    service.answers["GET /v1/mcp-servers"] = (200, [shown])
    row = instar(service, "mcp", "list").stdout.splitlines()[1]
    assert row.split() == ["desk", "mcp_stdio", "desk", "--quiet", "1", "-", "no"]


def test_the_rule_for_promotions_is_shown_and_set(service: Service) -> None:
    service.answers["GET /v1/project"] = (200, {"id": "p", "name": "here", "promotion": "auto"})
    service.answers["PUT /v1/project"] = (200, {"id": "p", "name": "here", "promotion": "ask"})
    shown = instar(service, "project", "promotion").stdout
    assert shown == "here: auto (an accepted gain is promoted)\n"
    assert len(service.asked) == 1
    done = instar(service, "project", "promotion", "ask")
    assert done.stdout == "here: ask (a person decides)\n", done.stderr
    assert service.asked[-1][2] == {"promotion": "ask"}


def test_a_shown_version_goes_into_a_file_that_can_be_saved_again(service: Service) -> None:
    text = "Be kind.\n"
    version = {
        "id": "v",
        "number": 2,
        "digest": "d" * 64,
        "origin": "save",
        "author_kind": "person",
        "author": "key:k",
        "reason": "shorter",
        "created_at": "2026-11-30T11:11:28.812675Z",
        "notices": [],
        "content": text,
    }
    service.answers["GET /v1/artifacts/prompt/greeting/versions/2"] = (200, version)
    done = instar(service, "artifact", "show", "prompt", "greeting", "--version", "2")
    assert done.stdout == text, done.stderr
    assert (
        "version 2 (dddddddddddd), save of 2026-11-30 11:11:28 UTC by person:key:k" in done.stderr
    )
    assert "reason: shorter" in done.stderr
    service.answers["GET /v1/artifacts/prompt/greeting"] = (200, {"labels": {"staging": 2}})
    page = {"data": [version], "next": None}
    service.answers["GET /v1/artifacts/prompt/greeting/versions"] = (200, page)
    rows = instar(service, "artifact", "versions", "prompt", "greeting").stdout.splitlines()
    assert rows[1].startswith("2        staging  save    person:key:k  2026-11-30 11:11:28 UTC")
