"""``instar artifact export|import|import-skill|export-skill`` and ``instar tasks export``, live."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from instar.cli.main import app
from instar.settings import load_settings
from instar_core.errors import InstarError
from instar_skills.archives import read_archive
from instar_skills.disk import read_folder

pytestmark = pytest.mark.slow

SKILL = b"---\nname: sort-mail\ndescription: Sorts: mail\nhint: x\n---\r\nBody\n"
TASKS = "".join(
    json.dumps(
        {
            "id": f"t{n}",
            "input": f"{n}は?",
            "split": split,
            "group": f"g{n}",
            "verifier": {"name": "exact", "config": {"answer": "yes"}},
        }
    )
    + "\n"
    for n, split in enumerate(["train", "train", "validation", "sealed"])
)


@pytest.fixture
def run(api: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs a command against the live API, as the admin of one project or of the other."""

    def go(*words: str, key: str = "admin", ok: bool = True) -> Any:
        monkeypatch.setenv("INSTAR_URL", api.url)
        monkeypatch.setenv("INSTAR_API_KEY", api.keys[key])
        # Each command is a process of its own elsewhere, and reads its settings once.
        load_settings.cache_clear()
        done = CliRunner().invoke(app, [*words, "--json"])
        if not ok:
            assert done.exit_code != 0
            return done
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    yield go
    load_settings.cache_clear()


@pytest.fixture
def project(run: Any, api: Any, agent_body: Any, tmp_path: Path) -> Path:
    """A project with an agent, a task set and a skill; the folder for what comes out."""
    client = api.client()
    assert client.post("/v1/agents", json=agent_body()).status_code == 201
    (tmp_path / "tasks.jsonl").write_text(TASKS, encoding="utf-8")
    run("tasks", "import", "even", str(tmp_path / "tasks.jsonl"))
    folder = tmp_path / "sort-mail"
    (folder / "assets").mkdir(parents=True)
    (folder / "SKILL.md").write_bytes(SKILL)
    (folder / "assets" / "x.bin").write_bytes(b"\x00\xff")
    found = run("artifact", "import-skill", str(folder))
    assert found["name"] == "sort-mail" and found["version"] == 1 and not found["strict"]
    assert any("quot" in words for words in found["problems"])
    return tmp_path


@pytest.mark.parametrize("name", ["out", "out.tar.gz"])
def test_a_project_goes_out_to_a_folder_or_file_and_in_again(
    run: Any, project: Path, name: str
) -> None:
    path = project / name
    out = run("artifact", "export", str(path))
    assert out["sealed"] == {"included": False, "tasks": 1} and out["versions"] >= 4
    dry = run("artifact", "import", str(path), "--dry-run", key="other")
    assert dry["dry_run"] and dry["versions"] == out["versions"]
    assert run("artifact", "list", key="other") == []
    done = run("artifact", "import", str(path), key="other")
    assert done["versions"] == out["versions"]
    assert run("artifact", "import", str(path), key="other")["versions"] == 0
    back = project / "back"
    run("artifact", "export", str(back), key="other")
    first = read_folder(path) if path.is_dir() else read_archive(path.read_bytes())
    second = read_folder(back)
    del first["manifest.json"], second["manifest.json"]
    assert first == second
    refused = run("artifact", "export", str(path), ok=False)
    assert isinstance(refused.exception, InstarError) and "exists" in str(refused.exception)


def test_sealed_tasks_go_out_on_the_servers_machine_alone(
    run: Any, api: Any, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INSTAR_DATA_DIR", str(tmp_path / "nowhere"))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    refused = run("artifact", "export", str(project / "a"), "--with-sealed", ok=False)
    assert "installation" in str(refused.exception)
    monkeypatch.setenv("DATABASE_URL", api.database.owner_url)
    out = run("artifact", "export", str(project / "b"), "--with-sealed")
    assert out["sealed"] == {"included": True, "tasks": 1}
    done = run("artifact", "import", str(project / "b"), key="other")
    assert done["sealed"] == 1
    assert run("artifact", "import", str(project / "b"), key="other")["sealed"] == 0


def test_a_skill_goes_out_as_it_came_or_strict(run: Any, project: Path) -> None:
    out = run("artifact", "export-skill", "sort-mail", str(project / "out"))
    assert out["path"].endswith("sort-mail")
    assert read_folder(Path(out["path"])) == read_folder(project / "sort-mail")
    strict = run("artifact", "export-skill", "sort-mail", str(project / "s"), "--strict", "--stamp")
    assert strict["strict"] and strict["problems"] == []
    text = (Path(strict["path"]) / "SKILL.md").read_text(encoding="utf-8")
    assert '"instar.version": "1"' in text and '"hint": "x"' in text
    again = run("artifact", "import-skill", strict["path"], "--strict", "--dry-run")
    assert again["strict"]
    refused = run(
        "artifact", "import-skill", str(project / "sort-mail"), "--strict", "--name", "x", ok=False
    )
    assert "strict" in str(refused.exception)


def test_tasks_go_out_as_jsonl_and_in_again(run: Any, project: Path) -> None:
    first, second = project / "one.jsonl", project / "two.jsonl"
    out = run("tasks", "export", "even", str(first))
    assert (out["tasks"], out["sealed_left_out"]) == (3, 1)
    run("tasks", "import", "copy", str(first), key="other")
    run("tasks", "export", "even", str(second))
    assert first.read_bytes() == second.read_bytes()
    assert "は".encode() in first.read_bytes()


def test_an_agent_file_comes_in_with_a_report(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "desk.af"
    document = {
        "name": "Old Desk",
        "system": "Answer.",
        "messages": [{"role": "user", "text": "hi"}],
        "core_memory": [{"label": "human", "value": "Ada"}],
    }
    file.write_text(json.dumps(document))
    dry = run("artifact", "import-agent", str(file), "--dry-run")
    assert dry["dry_run"] and run("artifact", "list") == []
    done = run("artifact", "import-agent", str(file))
    assert done["created"] == 3
    names = {row["name"] for row in run("artifact", "list")}
    assert names == {"old-desk", "old-desk/instructions", "old-desk/memory"}


def test_a_damaged_file_is_refused_before_it_is_sent(run: Any, project: Path) -> None:
    path = project / "p.tar.gz"
    run("artifact", "export", str(path))
    path.write_bytes(path.read_bytes()[:-40])
    refused = run("artifact", "import", str(path), key="other", ok=False)
    assert "archive" in str(refused.exception)
    missing = run("artifact", "import", str(project / "none"), key="other", ok=False)
    assert "cannot read" in str(missing.exception)
