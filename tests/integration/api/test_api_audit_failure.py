"""Audit failure: where the audit row cannot be written, nothing is done (``test_a31_…``).

Every route that changes something is walked. One that is new has to be put into the table here, or
among those that change nothing, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from instar.api.schemas_transfer import ARCHIVE
from instar.audit.keys import ensure_signing_key, signing_key_file
from instar.settings import Settings
from instar.store.artifacts import ArtifactRef, Draft, create_version, encode_content, resolve
from instar.store.audit import SYSTEM, Author
from instar.store.promotions import NewProposal, create_proposal
from instar.store.session import Database
from instar.store.task_sets import create_task_set
from instar_evolvers.worlds import open_world

if TYPE_CHECKING:
    from tests.integration.api.conftest import LiveApi
else:
    LiveApi = Any

pytestmark = pytest.mark.postgres
NOTES = Path(__file__).parents[1] / "servers" / "notes_server.py"
PASSWORD = "a long enough pass phrase"

UNTOUCHED = {
    "POST /v1/audit/verify": "reads",
    "POST /v1/audit/checkpoints": "seals what was audited",
    "POST /v1/audit/accept-restore": "does nothing unless the copy is ahead; see the test below",
    "POST /v1/evolution/quote": "reads; probing models is audited on its own",
    "PUT /v1/auth/session": "needs a browser's session; its store functions are audited",
    "DELETE /v1/auth/session": "needs a browser's session; its store functions are audited",
    "POST /v1/auth/password": "needs a browser's session; its store functions are audited",
}
"""Routes that are not walked, and why."""


@dataclass
class Ground:
    """A project with something of everything."""

    api: LiveApi
    client: httpx.Client
    names: dict[str, str] = field(default_factory=dict)
    archive: bytes = b""

    def make(self, method: str, path: str, body: Any = None) -> Any:
        """Sends what must succeed."""
        answer = _request(self.client, method, path, {} if body is None else {"json": body})
        assert answer.status_code < 300, (method, path, answer.text)
        return answer.json() if answer.content and "json" in answer.headers["content-type"] else {}

    def prints(self) -> dict[str, str]:
        """Table → fingerprint of its rows; of those that a refused request may touch, none."""
        tables = self.api.database.query(
            "select relname from pg_class where relnamespace = 'instar'::regnamespace "
            "and relkind in ('r', 'p') and not relispartition "
            "and relname not in ('idempotency_key', 'login_failure')"
        )
        parts = " union all ".join(
            f"select '{name}', coalesce(md5(string_agg(md5(cast(t as text)), '' "
            f"order by md5(cast(t as text)))), '') from instar.\"{name}\" t"
            for (name,) in tables
        )
        return dict(self.api.database.query(parts))


async def _propose(db: Database, ground: Ground, agent: str, mark: str) -> str:
    """A proposal of an agent's second version, as if its test had been accepted."""
    project = ground.api.project_id
    ids = dict(
        ground.api.database.query(
            "select v.number, cast(v.id as text) from version v join artifact a "
            "on a.id = v.artifact_id where a.kind = 'agent' and a.name = %s",
            agent,
        )
    )
    new = NewProposal(ground.names["run"], agent, "production", mark, ids[2], ids[1], {}, "person")
    async with db.transaction(project) as session:
        row = await create_proposal(session, project, new)
    ground.api.database.query(
        "update proposal set state = 'waiting', verdict = 'accepted' where id = %s", row.id
    )
    return row.id


async def _learn(db: Database, ground: Ground, name: str) -> None:
    """A run's overlay on a prompt that is open to jobs."""
    project = ground.api.project_id
    ground.api.database.query("update artifact set job_access = 'overlay' where name = %s", name)
    ref = ArtifactRef(project, "prompt", name)
    async with db.transaction(project) as session:
        base = (await resolve(session, ref)).version
        draft = Draft(
            *encode_content(f"{PROMPTS[name]} Twice."),
            Author("run", ground.names["done"]),
            "found",
            parents=[base.id],
            origin="overlay",
            base=base.id,
        )
        await create_version(session, ref, draft)


@pytest.fixture
def ground(api: LiveApi, agent_body: Any, scripts: Path) -> Ground:
    """Something of everything, so that every route has something to change."""
    ensure_signing_key(Settings(data_dir=scripts.parent / "data"))
    api.database.query("update api_key set instance = true where name = 'admin'")
    made = Ground(api, api.client())
    for agent in ("desk", "other", "third"):
        made.make("POST", "/v1/agents", agent_body(agent, label="production"))
        made.make("POST", "/v1/agents", agent_body(agent, version="two"))
    for name, text in PROMPTS.items():
        new = {"kind": "prompt", "name": name, "content": text, "allow_similar": True}
        made.make("POST", "/v1/artifacts", new)
    made.make("POST", "/v1/artifacts/prompt/greet/versions", {"content": "Greet them twice."})
    made.make("POST", "/v1/artifacts/prompt/spare/versions", {"content": "Spare them nothing."})
    made.make("DELETE", "/v1/artifacts/prompt/archived?versions=all")
    for label in ("here", "gone", "back"):
        made.make("PUT", f"/v1/artifacts/prompt/greet/labels/{label}", {"version": 1})
    made.make("PUT", "/v1/artifacts/prompt/greet/labels/back", {"version": 2})
    server = {"name": "notes", "command": "{python}", "args": [str(NOTES)]}
    made.make("PUT", "/v1/mcp-servers/notes", server)
    made.make("PUT", "/v1/secrets/old", {"value": "hush"})
    made.names["key"] = made.make("POST", "/v1/api-keys", {"name": "k", "role": "viewer"})["id"]
    for name in ("ann", "bob", "cyd", "dan"):
        user = {"email": f"{name}@example.org", "password": PASSWORD, "role": "operator"}
        made.names[name] = made.make("POST", "/v1/users", user)["id"]
    made.names["project"] = api.project_id
    world = open_world("world:planted:seed=7,train=160,validation=64,sealed=300")

    async def save_tasks(db: Database) -> None:
        tasks = [task for split in world.tasks() for task in split]
        async with db.transaction(api.project_id) as session:
            await create_task_set(session, api.project_id, "cases", tasks, author=SYSTEM)

    api.database.run(save_tasks)
    seed = world.seed_candidate().model_dump(mode="json")
    parts = {key: seed[key] for key in ("components", "harness")}
    made.make("POST", "/v1/agents", {"name": "router", "label": "production", **parts})
    for name in ("run", "resumed", "done"):
        made.names[name] = made.make("POST", "/v1/evolution/runs", SPEC)["id"]
    api.database.query(
        "update evolution_run set state = 'interrupted', job_id = null where id = %s",
        made.names["resumed"],
    )
    api.database.query(
        "update evolution_run set state = 'succeeded' where id = %s", made.names["done"]
    )
    for name in ("clash", "taught"):
        api.database.run(lambda db, name=name: _learn(db, made, name))
    made.make("POST", "/v1/artifacts/prompt/clash/versions", {"content": "Lock every window."})
    found = made.make("GET", "/v1/artifacts/prompt/clash/conflicts")["data"]
    made.names["conflict"] = found[0]["id"]
    for agent, name in (("desk", "approved"), ("other", "rejected"), ("third", "promoted")):
        made.names[name] = api.database.run(
            lambda db, agent=agent, name=name: _propose(db, made, agent, name)
        )
    made.make("POST", f"/v1/proposals/{made.names['promoted']}/approve", {})
    made.names["promotion"] = made.make("GET", "/v1/promotions")["data"][0]["id"]
    made.archive = made.client.post("/v1/export", json={}).content
    return made


PROMPTS = {
    "greet": "Greet whoever comes, by name.",
    "spare": "Count the chairs in the hall.",
    "doomed": "Sail north until the ice begins.",
    "archived": "Water the ferns on Mondays alone.",
    "clash": "Lock one window.",
    "taught": "Ring the bell.",
    "bulk": "Peel seven lemons, slowly.",
}
SPEC = {
    "agent": "router",
    "task_set": "cases",
    "evolver": "tf_grpo",
    "evolver_config": {"search_rollouts": 1600},
    "seed": 3,
}
TASK = {
    "id": "t1",
    "split": "train",
    "group": "g1",
    "input": "hello",
    "verifier": {"name": "exact", "config": {"answer": "hi"}},
}


def _agent(ground: Ground) -> Any:
    part = {"kind": "instructions", "content": "New."}
    return {
        "name": "fresh",
        "components": {"instructions": part},
        "harness": {"model": "scripted/tell"},
    }


CASES: dict[str, tuple[str, Any]] = {
    "POST /v1/agents": ("/v1/agents", _agent),
    "POST /v1/agents/{name}/runs": ("/v1/agents/desk/runs", {"input": "say hello"}),
    "POST /v1/chat/completions": (
        "/v1/chat/completions",
        {"model": "agent/desk", "messages": [{"role": "user", "content": "say hello"}]},
    ),
    "POST /v1/task-sets": ("/v1/task-sets", {"name": "fresh", "jsonl": json.dumps(TASK)}),
    "POST /v1/evolution/runs": ("/v1/evolution/runs", SPEC),
    "POST /v1/evolution/runs/{run_id}/cancel": ("/v1/evolution/runs/{run}/cancel", None),
    "POST /v1/evolution/runs/{run_id}/resume": ("/v1/evolution/runs/{resumed}/resume", None),
    "POST /v1/proposals/{proposal_id}/approve": ("/v1/proposals/{approved}/approve", {}),
    "POST /v1/proposals/{proposal_id}/reject": ("/v1/proposals/{rejected}/reject", {}),
    "POST /v1/promotions/{promotion_id}/rollback": (
        "/v1/promotions/{promotion}/rollback",
        {"reason": "worse"},
    ),
    "POST /v1/artifacts/{kind}/{name}/versions": (
        "/v1/artifacts/prompt/greet/versions",
        {"content": "three"},
    ),
    "PUT /v1/artifacts/{kind}/{name}/labels/{label}": (
        "/v1/artifacts/prompt/greet/labels/here",
        {"version": 2},
    ),
    "DELETE /v1/artifacts/{kind}/{name}/labels/{label}": (
        "/v1/artifacts/prompt/greet/labels/gone",
        None,
    ),
    "POST /v1/artifacts/{kind}/{name}/rollback": (
        "/v1/artifacts/prompt/greet/rollback",
        {"label": "back"},
    ),
    "POST /v1/artifacts": (
        "/v1/artifacts",
        {"kind": "prompt", "name": "fresh", "content": "Tune the piano before noon."},
    ),
    "PUT /v1/artifacts/{kind}/{name}": (
        "/v1/artifacts/prompt/greet",
        {"content": "Greet nobody before nine."},
    ),
    "PATCH /v1/artifacts/{kind}/{name}": (
        "/v1/artifacts/prompt/greet",
        {"description": "for the door"},
    ),
    "PATCH /v1/artifacts/{kind}/{name}/labels/{label}": (
        "/v1/artifacts/prompt/greet/labels/back",
        {"move_role": "approver"},
    ),
    "POST /v1/artifacts/{kind}/{name}/copy": (
        "/v1/artifacts/prompt/greet/copy",
        {"to": "greet-copy"},
    ),
    "DELETE /v1/artifacts/{kind}/{name}": ("/v1/artifacts/prompt/doomed?versions=all", None),
    "POST /v1/artifacts/{kind}/{name}/restore": ("/v1/artifacts/prompt/archived/restore", {}),
    "DELETE /v1/artifacts/{kind}/{name}/versions/{version}": (
        "/v1/artifacts/prompt/spare/versions/1",
        None,
    ),
    "POST /v1/artifacts/{kind}/{name}/merge": (
        "/v1/artifacts/prompt/greet/merge",
        {"ours": "1", "theirs": "2", "content": "Greet them thrice.", "dry_run": False},
    ),
    "POST /v1/artifacts/{kind}/{name}/conflicts/{conflict_id}/resolve": (
        "/v1/artifacts/prompt/clash/conflicts/{conflict}/resolve",
        {"prefer": "learned"},
    ),
    "POST /v1/evolution/runs/{run_id}/restore": ("/v1/evolution/runs/{done}/restore", {}),
    "POST /v1/artifacts/archive": (
        "/v1/artifacts/archive",
        lambda ground: {
            "project": ground.api.project_id,
            "kind": "prompt",
            "names": ["bulk"],
            "versions": "all",
            "count": 1,
        },
    ),
    "POST /v1/audit/key/rotate": ("/v1/audit/key/rotate", None),
    "PUT /v1/mcp-servers/{name}": (
        "/v1/mcp-servers/fresh",
        {"name": "fresh", "command": "{python}", "args": [str(NOTES)]},
    ),
    "DELETE /v1/mcp-servers/{name}": ("/v1/mcp-servers/notes", None),
    "PUT /v1/project": ("/v1/project", {"promotion": "auto"}),
    "POST /v1/auth/login": ("/v1/auth/login", {"email": "ann@example.org", "password": PASSWORD}),
    "POST /v1/users": (
        "/v1/users",
        {"email": "eve@example.org", "password": PASSWORD, "role": "viewer"},
    ),
    "PUT /v1/users/{user_id}/role": ("/v1/users/{bob}/role", {"role": "viewer"}),
    "POST /v1/users/{user_id}/disable": ("/v1/users/{cyd}/disable", None),
    "POST /v1/users/{user_id}/password": (
        "/v1/users/{dan}/password",
        {"password": PASSWORD + " anew"},
    ),
    "DELETE /v1/users/{user_id}": ("/v1/users/{dan}", None),
    "POST /v1/projects": ("/v1/projects", {"name": "fresh"}),
    "POST /v1/api-keys": ("/v1/api-keys", {"name": "fresh", "role": "viewer"}),
    "DELETE /v1/api-keys/{key_id}": ("/v1/api-keys/{key}", None),
    "PUT /v1/secrets/{name}": ("/v1/secrets/fresh", {"value": "hush"}),
    "DELETE /v1/secrets/{name}": ("/v1/secrets/old", None),
    "POST /v1/export": ("/v1/export", {}),
    "POST /v1/import": ("/v1/import?prefix=copy-", lambda ground: ground.archive),
    # The last one: there is no project afterwards.
    "DELETE /v1/projects/{project_id}": ("/v1/projects/{project}", None),
}
"""Route → the request that changes something: path with names of the ground, body."""


def _send(ground: Ground, route: str) -> httpx.Response:
    path, body = CASES[route]
    value = body(ground) if isinstance(body, Callable) else body  # type: ignore[arg-type]
    method = route.partition(" ")[0]
    sent: dict[str, Any] = {} if value is None else {"json": value}
    if isinstance(value, bytes):
        sent = {"content": value, "headers": {"Content-Type": ARCHIVE}}
    return _request(ground.client, method, path.format(**ground.names), sent)


def _request(client: httpx.Client, method: str, path: str, sent: dict[str, Any]) -> httpx.Response:
    """Sends a request, and again for whatever is there when it needs a precondition."""
    answer = client.request(method, path, **sent)
    if answer.status_code == 428:
        answer = client.request(method, path, headers={"If-Match": "*"}, **sent)
    return answer


BREAK = {
    "function revoked": (
        "revoke execute on function instar.append_audit from instar_app",
        "grant execute on function instar.append_audit to instar_app",
    ),
    "disk full": (
        "create function public.full() returns trigger language plpgsql as $$ begin raise "
        "disk_full using message = 'no space left on device'; end $$; "
        "create trigger full_disk before insert on instar.audit_event "
        "for each row execute function public.full()",
        "drop trigger full_disk on instar.audit_event; drop function public.full()",
    ),
}


def test_a31_every_route_that_changes_something_is_walked(api: LiveApi) -> None:
    document = api.bare().get("/openapi.json").json()
    writing = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
        if method in ("post", "put", "patch", "delete")
    }
    unknown = writing - set(CASES) - set(UNTOUCHED)
    assert not unknown, f"put these into CASES, or UNTOUCHED with the reason: {sorted(unknown)}"
    assert set(CASES) | set(UNTOUCHED) <= writing


@pytest.mark.slow
def test_a31_without_its_audit_row_nothing_is_done(ground: Ground, scripts: Path) -> None:
    key = signing_key_file(Settings(data_dir=scripts.parent / "data"))
    trouble: list[str] = []
    for cause, (broken, mended) in BREAK.items():
        ground.api.database.query(broken)
        for route in CASES:
            before, key_before = ground.prints(), key.read_bytes()
            answer = _send(ground, route)
            after = ground.prints()
            changed = [name for name in after if after[name] != before[name]]
            if answer.status_code != 503 or changed or key.read_bytes() != key_before:
                trouble.append(f"{cause}: {route}: {answer.status_code}, changed: {changed}")
        ground.api.database.query(mended)
    assert not trouble, "\n".join(trouble)


@pytest.mark.slow
def test_a31_every_change_appends_to_the_audit_trail(ground: Ground) -> None:
    count = "select count(*) from audit_event"
    trouble: list[str] = []
    report: Any = None
    for route in CASES:
        if route.startswith("DELETE /v1/projects"):
            report = ground.client.get("/v1/audit/verify").json()
        before = ground.api.database.query(count)[0][0]
        answer = _send(ground, route)
        rows = ground.api.database.query(count)[0][0] - before
        if answer.status_code >= 300 or rows < 1:
            trouble.append(f"{route}: {answer.status_code}, {rows} rows: {answer.text[:300]}")
    assert not trouble, "\n".join(trouble)
    assert report["ok"], report


_KEEPER = {
    "name": "keeper",
    "label": "production",
    "components": {"instructions": {"kind": "instructions", "content": "Keep notes."}},
    "harness": {
        "model": "scripted/caller",
        "tool_protocol": "native",
        "tools": [{"name": "notes"}],
    },
}


@pytest.fixture
def keeper(api: LiveApi, scripts: Path, tmp_path: Path) -> httpx.Client:
    """An agent that calls a real tool, one that it is not offered, and one with wrong arguments."""
    client = api.client()
    server = {
        "name": "notes",
        "command": "{python}",
        "args": [str(NOTES)],
        "env": {"NOTES_DB": str(tmp_path / "notes.db")},
    }
    _request(client, "PUT", "/v1/mcp-servers/notes", {"json": server}).raise_for_status()
    calls = [
        {"name": "write_note", "arguments": {"id": "a", "text": "kept"}},
        {"name": "open_door", "arguments": {"secret": "1234"}},
        {"name": "write_note", "arguments": {"id": 7}},
    ]
    rules = [
        {"match": "remember", "tool_calls": calls},
        {"match": ".*", "reply": "Done."},
    ]
    (scripts / "caller.json").write_text(json.dumps({"rules": rules}))
    client.post("/v1/agents", json=_KEEPER).raise_for_status()
    return client


def test_a32_every_gate_decision_is_in_the_runs_stream_before_its_call(
    api: LiveApi, keeper: httpx.Client
) -> None:
    run = keeper.post("/v1/agents/keeper/runs", json={"input": "remember"})
    assert run.status_code == 200, run.text
    stream = {"stream": run.json()["id"]}
    events = keeper.get("/v1/audit", params=stream).json()["data"][::-1]
    shown = [(one["action"], one["subject"], (one["details"] or {}).get("rule")) for one in events]
    assert shown == [
        ("run.start", "agent/keeper", None),
        ("gate.allow", "write_note", "offered"),
        ("gate.refuse", "open_door", "not_offered"),
        ("gate.refuse", "write_note", "arguments"),
    ]
    assert events[0]["actor_kind"] == "person"
    assert {(one["actor_kind"], one["actor"]) for one in events[1:]} == {("run", stream["stream"])}
    # The arguments are there as a hash alone.
    assert "1234" not in json.dumps(events) and "kept" not in json.dumps(events)
    assert all(len(one["details"]["arguments"]) == 64 for one in events[1:])
    assert keeper.get("/v1/audit/verify").json()["ok"]


def test_a32_a_decision_that_cannot_be_written_stops_the_call(
    api: LiveApi, keeper: httpx.Client, tmp_path: Path
) -> None:
    api.database.query(
        "create function public.full() returns trigger language plpgsql as $$ begin raise "
        "disk_full using message = 'no space left on device'; end $$; "
        "create trigger full_disk before insert on instar.audit_event for each row "
        "when (new.action like 'gate.%') execute function public.full()"
    )
    run = keeper.post("/v1/agents/keeper/runs", json={"input": "remember"})
    assert run.status_code == 503
    # The tool's server may have started; the tool was not called.
    assert not (tmp_path / "notes.db").exists()
    assert api.database.query("select state, error like '%no space left%' from run") == [
        ("failed", True)
    ]
    assert api.database.query("select action from audit_event where stream <> 'admin'") == [
        ("run.start",)
    ]
