"""``instar artifact``: every verb from the command line, against a live API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from instar.cli.artifacts import app as artifact_app
from instar.cli.main import app
from instar.settings import load_settings
from instar_core.errors import ConflictError, NotFoundError, PermissionDenied, UserError

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def run(api: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs ``instar artifact …``; gives its JSON, or raises what it raised."""

    def go(*words: str, key: str = "admin", json_out: bool = True) -> Any:
        monkeypatch.setenv("INSTAR_URL", api.url)
        monkeypatch.setenv("INSTAR_API_KEY", api.keys[key])
        load_settings.cache_clear()
        more = ["--json"] if json_out else []
        done = CliRunner().invoke(app, ["artifact", *words, *more])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout) if json_out else done.stdout

    yield go
    load_settings.cache_clear()


def test_a_prompt_from_its_first_version_to_the_archive_and_back(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "greeting.md"
    file.write_text("Be kind to everybody who writes.", encoding="utf-8")
    made = run("create", "prompt", "greeting", str(file), "--description", "says hello")
    assert (made["number"], made["notices"]) == (1, [])
    file.write_text("Be kind and brief to everybody who writes.", encoding="utf-8")
    assert run("save", "prompt", "greeting", str(file), "--why", "too long")["number"] == 2
    words = run("diff", "prompt", "greeting", "1", "2", json_out=False)
    assert words == "Be kind [+and brief ]to everybody who writes.\n"
    assert run("label", "prompt", "greeting", "staging", "1")["version"] == 1
    assert run("label", "prompt", "greeting", "staging", "2", "--why", "ok")["version"] == 2
    back = run("rollback", "prompt", "greeting", "--label", "staging", json_out=False)
    assert back == "prompt greeting: staging names version 1 again\n"
    moves = run("history", "prompt", "greeting", "staging")
    assert [(move["before"], move["after"]) for move in moves] == [(None, 1), (1, 2), (2, 1)]
    assert [row["name"] for row in run("list", "--q", "brief")] == ["greeting"]
    assert run("list", "--kind", "prompt", "--q", "absent") == []
    assert run("describe", "prompt", "greeting", "--tag", "a", "--tag", "b")["tags"] == ["a", "b"]
    assert run("copy", "prompt", "greeting", "hello", "--version", "staging")["number"] == 1
    assert run("archive", "prompt", "hello", "--all")["count"] == 1
    assert [row["name"] for row in run("list", "--archived")] == ["hello"]
    run("restore", "prompt", "hello")
    run("archive", "prompt", "greeting", "--version", "2")
    with pytest.raises(NotFoundError, match="no version 2"):
        run("show", "prompt", "greeting", "--version", "2")
    run("restore", "prompt", "greeting", "--version", "2")
    assert run("show", "prompt", "greeting", "--version", "2")["number"] == 2
    assert "- greeting: says hello (version 2)" in run("contract", "prompt", json_out=False)
    (part,) = run("components", "prompt", "greeting")
    assert (part["owner"], part["budget_tokens"]) == ("person", 4_000)


def test_a_skill_folder_and_json_files_are_read(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sort"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: sort\ndescription: Sorts.\n---\nRead.\n")
    (folder / "scripts" / "go.sh").write_bytes(b"#!/bin/sh\n\xff")
    assert run("create", "skill", "sort", str(folder))["content"]["files"]["scripts/go.sh"] == {
        "base64": "IyEvYmluL3NoCv8="
    }
    lessons = tmp_path / "learned.json"
    lessons.write_text('{"entries": [{"id": "L1", "text": "Look first."}]}')
    assert run("create", "lessons", "learned", str(lessons))["number"] == 1
    lessons.write_text('{"entries": [')
    with pytest.raises(UserError, match="not JSON: line 1"):
        run("save", "lessons", "learned", str(lessons))


def test_mistakes_are_told_in_words(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.md"
    file.write_text("Be kind.", encoding="utf-8")
    run("create", "prompt", "greeting", str(file))
    with pytest.raises(NotFoundError, match="Did you mean 'greeting'"):
        run("save", "prompt", "greting", str(file))
    with pytest.raises(NotFoundError, match="Did you mean 'prompt'"):
        run("show", "promt", "greeting")
    with pytest.raises(ConflictError, match="already"):
        run("create", "prompt", "greeting", str(file))
    with pytest.raises(UserError, match="--version N, or --all"):
        run("archive", "prompt", "greeting")
    with pytest.raises(UserError, match="nothing to edit"):
        run("describe", "prompt", "greeting")
    run("label", "prompt", "greeting", "production", "1", key="operator")
    with pytest.raises(PermissionDenied, match="protected"):
        run("label", "prompt", "greeting", "production", "1", key="operator")
    assert run("protect", "prompt", "greeting", "production", "approver")["protected"]
    assert run("label", "prompt", "greeting", "production", "1", key="approver")["version"] == 1


def test_kinds_come_with_examples_that_can_be_saved(run: Any, tmp_path: Path) -> None:
    kinds = run("kinds")
    assert len(kinds) == 14
    for kind in kinds:
        file = tmp_path / f"{kind['name']}.json"
        file.write_text(json.dumps(kind["examples"][1]))
        name = kind["name"].replace("_", "-")
        assert run("create", kind["name"], f"my-{name}", str(file))["number"] == 1
    agent = run("contract", "agent", "my-agent")
    assert agent["text"] == ""


def test_every_artifact_command_has_json() -> None:
    for command in artifact_app.registered_commands:
        assert command.callback is not None
        assert "json" in command.callback.__annotations__, command.callback.__name__
