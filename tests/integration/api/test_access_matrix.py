"""Every route, by every caller, with one's own id, another project's and one that nobody has.

The routes come from the application itself, so that a new one is walked without being told of here;
one with a new kind of place in its path fails until the world below has a thing for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest

from instar.api.app import create_app
from instar.api.auth import Access
from instar.api.declared import declared_routes
from instar.settings import Settings
from instar.store.audit import SYSTEM
from instar.store.passwords import hash_password
from instar.store.projects import NewKey, create_api_key, create_project
from instar.store.task_sets import create_task_set
from instar.store.testing import counted_statements
from instar.store.users import NewUser, add_user
from instar_core.base import new_id
from instar_evolvers.worlds import open_world

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
WORLD = "world:planted:seed=7,train=160,validation=64,sealed=300"
PASSWORD = "plum kettle orbit 7"
RANKS: dict[Access, int] = {"anyone": 0, "viewer": 1, "operator": 2, "approver": 3, "admin": 4}
RANKS["instance"] = 5
CALLERS = {"nobody": 0, "viewer": 1, "operator": 2, "agent": 2, "approver": 3, "admin": 4}
CALLERS["instance"] = 5
ORDER = ("GET", "POST", "PATCH", "PUT", "DELETE")
# A name that is not there yet is made, in the caller's own project.
MAKES = {
    ("POST", "/v1/artifacts/{kind}/{name}/versions"),
    ("PUT", "/v1/mcp-servers/{name}"),
    ("PUT", "/v1/secrets/{name}"),
}
# What would take the walk its own legs away; each is tested in test_api_access.py.
APART = {
    ("DELETE", "/v1/projects/{project_id}"),
    ("POST", "/v1/audit/key/rotate"),
    ("PUT", "/v1/auth/session"),
    ("DELETE", "/v1/auth/session"),
    ("POST", "/v1/auth/password"),
}


# Where the things of the world do not fit a route.
INSTEAD = {
    "/behaviour": {"kind": "agent", "new": "1"},
    "/timeline": {"kind": "agent", "label": "production"},
}


class Project(NamedTuple):
    """A project full of things, by the name of the place in a path that they fill."""

    id: str
    name: str
    keys: dict[str, str]
    ids: dict[str, str]
    run_id: str


class Walked(NamedTuple):
    """One route as it is walked."""

    method: str
    path: str
    access: Access


def routes() -> list[Walked]:
    """Every route that is not public, harmless methods first."""
    app = create_app(Settings(app_database_url="postgresql://instar_app@localhost/x"))
    found = [
        Walked(method, one.path, one.access)
        for one in declared_routes(app)
        if one.access is not None
        for method in one.route.methods or ()
        if (method, one.path) not in APART
    ]
    return sorted(found, key=lambda one: (ORDER.index(one.method), one.path))


async def _people_and_keys(db: Any, project: str, name: str) -> tuple[dict[str, str], str, str]:
    keys: dict[str, str] = {}
    async with db.transaction(project) as session:
        for role in ("viewer", "operator", "approver", "admin"):
            made = await create_api_key(session, project, NewKey(role, role), SYSTEM)
            keys[role] = made.key
        agent = NewKey("agent", "operator", agent="ours-4711")
        keys["agent"] = (await create_api_key(session, project, agent, SYSTEM)).key
        whole = NewKey("instance", "admin", instance=True)
        keys["instance"] = (await create_api_key(session, project, whole, SYSTEM)).key
        spare = await create_api_key(session, project, NewKey(f"{name} spare"), SYSTEM)
        hashed = await hash_password(PASSWORD)
        new = NewUser(f"{name}@example.org", name, hashed)
        user = await add_user(session, project, new, "viewer", SYSTEM)
    return keys, spare.id, user.id


def fill(api: Any, project: str, name: str) -> Project:
    """One thing of every kind, named after the project."""
    keys, key_id, user_id = api.database.run(lambda db: _people_and_keys(db, project, name))
    admin = httpx.Client(
        base_url=api.url,
        headers={"Authorization": f"Bearer {keys['admin']}"},
        timeout=60,
        trust_env=False,
    )
    # Names of others and of nobody are equally unlike ours: hints at the nearest tell nothing.
    thing = f"{name}-{4711 if name == 'ours' else 8080}"

    def send(method: str, path: str, body: Any, **headers: str) -> Any:
        answer = admin.request(method, path, json=body, headers=headers)
        assert answer.status_code < 300, (path, answer.text)
        return answer.json()

    with admin:
        world = open_world(WORLD)
        seed = world.seed_candidate().model_dump(mode="json")
        body = {part: seed[part] for part in ("components", "harness")}
        send("POST", "/v1/agents", {"name": thing, "label": "production", **body})
        prompt = f"/v1/artifacts/prompt/{thing}"
        for text in ("one", "two"):
            content = f"{name} says {text}, {name} only."
            send("POST", f"{prompt}/versions", {"content": content})
        send("PUT", f"{prompt}/labels/live", {"version": 1})
        send("PUT", f"{prompt}/labels/live", {"version": 2}, **{"If-Match": "*"})
        send("PUT", f"/v1/mcp-servers/{thing}", {"name": thing, "command": "python"})
        send("PUT", f"/v1/secrets/{thing}", {"value": f"{name} keeps this to itself"})

        async def tasks(db: Any) -> None:
            every = [task for split in world.tasks() for task in split]
            async with db.transaction(project) as session:
                await create_task_set(session, project, thing, every, author=SYSTEM)

        api.database.run(tasks)
        spec = {"agent": thing, "task_set": thing, "evolver": "tf_grpo", "seed": 3}
        run = send("POST", "/v1/evolution/runs", spec)["id"]
        # Its stream of events would go on for as long as it waits.
        send("POST", f"/v1/evolution/runs/{run}/cancel", None)
        agent_run = _call(api, project, admin, thing)
    conflict = _conflict(api.database, project, thing)
    proposal, promotion = _decide(api.database, project, thing, run)
    ids = {"kind": "prompt", "name": thing, "version": "1", "old": "1", "new": "2", "label": "live"}
    ids |= {"run_id": run, "proposal_id": proposal, "promotion_id": promotion, "user_id": user_id}
    ids |= {"key_id": key_id, "project_id": project, "conflict_id": conflict}
    return Project(project, name, keys, ids, agent_run)


def _call(api: Any, project: str, admin: httpx.Client, thing: str) -> str:
    """A run of a scripted agent; returns its id."""
    body = {
        "name": f"{thing}-tell",
        "components": {"instructions": {"kind": "instructions", "content": "You are version one."}},
        "harness": {"model": "scripted/tell"},
        "label": "production",
    }
    admin.post("/v1/agents", json=body).raise_for_status()
    answer = admin.post(f"/v1/agents/{thing}-tell/runs", json={"input": f"say {thing}"})
    assert answer.status_code == 200, answer.text
    return str(api.database.query("select id from run where project_id = %s", project)[0][0])


def _conflict(database: Any, project: str, prompt: str) -> str:
    """An open conflict between a prompt's versions; as a changed base would leave it."""
    versions = database.query(
        "select v.artifact_id, v.id from version v join artifact a on a.id = v.artifact_id "
        "where a.project_id = %s and a.kind = 'prompt' and a.name = %s order by v.number",
        *(project, prompt),
    )
    made = new_id()
    (artifact, first), (_, second) = versions
    database.query(
        "insert into overlay_conflict (id, project_id, artifact_id, overlay_id, former_base_id, "
        "base_id, conflicts) values (%s, %s, %s, %s, %s, %s, '[]')",
        *(made, project, artifact, second, first, second),
    )
    return made


def _decide(database: Any, project: str, agent: str, run: str) -> tuple[str, str]:
    """A waiting proposal of a run, and a promotion of another; as a night would leave them."""
    version = database.query("select incumbent_version_id from evolution_run where id = %s", run)
    made = []
    for state in ("waiting", "approved"):
        made.append(new_id())
        database.query(
            "insert into proposal (id, project_id, run_id, agent, label, candidate_digest, "
            "agent_version_id, incumbent_version_id, state) "
            "values (%s, %s, %s, %s, 'production', 'd', %s, %s, %s)",
            *(made[-1], project, run, agent, version[0][0], version[0][0], state),
        )
    promotion = new_id()
    database.query(
        "insert into promotion (id, project_id, proposal_id, agent, label, from_version_id, "
        "to_version_id, state) values (%s, %s, %s, %s, 'production', %s, %s, 'watching')",
        *(promotion, project, made[1], agent, version[0][0], version[0][0]),
    )
    return made[0], promotion


@pytest.fixture
def ours(api: Any) -> Project:
    """The project of the callers."""
    return fill(api, api.project_id, "ours")


def theirs(api: Any) -> Project:
    """Another project with the same things in it."""
    found = api.database.query("select id from project where name = 'other'")
    return fill(api, str(found[0][0]), "theirs")


def unknown(project: Project) -> Project:
    """Ids that nobody has, and names that are as far from ours as theirs are."""
    ids = {
        place: new_id() if place.endswith("_id") else value.replace("8080", "9090")
        for place, value in project.ids.items()
    }
    return project._replace(id=ids["project_id"], ids=ids, run_id=new_id())


def address(path: str, project: Project) -> str:
    """A path with its places filled by a project's things."""

    instead = next((given for end, given in INSTEAD.items() if path.endswith(end)), {})

    def place(found: re.Match[str]) -> str:
        name = found.group(1)
        assert name in project.ids, f"the world has nothing for {{{name}}} of {path}"
        value = {**project.ids, **instead}[name]
        if name == "run_id" and path.startswith("/v1/runs/"):
            value = project.run_id
        return quote(value, safe="")

    return re.sub(r"\{(\w+)\}", place, path)


class Bodies:
    """Bodies that a route takes: hand-made where the least will not do."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def of(self, walked: Walked, project: Project) -> Any:
        """The body of a request about a project's things; ``None`` where there is none."""
        thing, area = project.ids["name"], walked.path.split("/")[2]
        spec = {"agent": thing, "task_set": thing, "evolver": "tf_grpo", "seed": 3}
        made: dict[str, Any] = {
            "evolution": spec,
            "chat": {
                "model": f"agent/{thing}@production",
                "messages": [{"role": "user", "content": "x"}],
            },
            "mcp-servers": {"name": thing, "command": "python"},
        }
        operation = self.document["paths"][walked.path][walked.method.lower()]
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" not in content:
            return None
        if area in made and "{run_id}" not in walked.path:
            return made[area]
        return self.least(content["application/json"]["schema"])

    def query(self, walked: Walked) -> dict[str, Any]:
        """What a route must be asked with."""
        operation = self.document["paths"][walked.path][walked.method.lower()]
        return {
            one["name"]: self.least(one["schema"])
            for one in operation.get("parameters", ())
            if one["in"] == "query" and one.get("required")
        }

    def least(self, schema: dict[str, Any]) -> Any:
        """The smallest value of a schema."""
        if "$ref" in schema:
            return self.least(self.document["components"]["schemas"][schema["$ref"].split("/")[-1]])
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.least(schema[several][0])
        if "enum" in schema:
            return schema["enum"][0]
        if "const" in schema:
            return schema["const"]
        known = schema.get("properties", {})
        values: dict[str, Any] = {
            "object": {name: self.least(known[name]) for name in schema.get("required", ())},
            "array": [],
            "integer": max(1, int(schema.get("minimum", 1))),
            "number": 1.0,
            "boolean": False,
            "string": "live" if schema.get("minLength", 0) < 12 else PASSWORD,
        }
        return values.get(str(schema.get("type")), "live")


def without_ids(text: str, project: Project) -> str:
    """An answer with the ids that were asked for taken out."""
    known = {*project.ids.values(), project.run_id} - {"prompt", "1", "2", "live"}
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, "…")
    return text


class Walk:
    """Sends each route as each caller."""

    def __init__(self, api: Any, ours: Project) -> None:
        self.bodies = Bodies(api.bare().get("/openapi.json").json())
        self.clients = {
            name: httpx.Client(
                base_url=api.url,
                headers={"Authorization": f"Bearer {key}"},
                timeout=60,
                trust_env=False,
            )
            for name, key in ours.keys.items()
        }
        self.clients["nobody"] = httpx.Client(base_url=api.url, timeout=60, trust_env=False)

    def send(self, caller: str, walked: Walked, project: Project) -> httpx.Response:
        """One request about a project's things."""
        return self.clients[caller].request(
            walked.method,
            address(walked.path, project),
            params=self.bodies.query(walked),
            json=self.bodies.of(walked, project),
            headers={"If-Match": "*"} if walked.method in ("PUT", "PATCH") else {},
        )

    def close(self) -> None:
        """Closes every client."""
        for client in self.clients.values():
            client.close()


@pytest.fixture
def walk(api: Any, ours: Project) -> Iterator[Walk]:
    """A walk as callers of our project."""
    made = Walk(api, ours)
    yield made
    made.close()


def test_a33_every_route_does_for_every_role_what_it_declares(
    api: Any, ours: Project, walk: Walk
) -> None:
    foreign = theirs(api)
    before = _contents(api.database, foreign.id)
    walked = routes()
    assert len(walked) >= 60
    for route in walked:
        for caller, rank in CALLERS.items():
            told = (route, caller)
            answer = walk.send(caller, route, ours)
            if caller == "nobody":
                assert answer.status_code == 401, told
            elif rank < RANKS[route.access]:
                # Who may not do it is not told either whether there is anything to do it to.
                others = walk.send(caller, route, foreign)
                assert (answer.status_code, others.status_code) == (403, 403), (told, answer.text)
                assert _detail(answer) == _detail(others), told
            else:
                assert answer.status_code not in (401, 403), (told, answer.text)
                if route.method == "GET":
                    assert answer.status_code == 200, (told, answer.text)
    assert _contents(api.database, foreign.id) == before


def _detail(answer: httpx.Response) -> str:
    return str(answer.json()["detail"])


def _contents(database: Any, project: str) -> dict[str, int]:
    """How much a project has of everything, past all walls."""
    tables = database.query(
        "select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid "
        "where c.relnamespace = 'instar'::regnamespace and c.relkind in ('r', 'p') "
        "and a.attname = 'project_id' and not a.attisdropped and not c.relispartition"
    )
    return {
        str(name): database.query(f'select count(*) from "{name}" where project_id = %s', project)[
            0
        ][0]
        for (name,) in tables
    }


def test_a33_a_foreign_id_is_told_like_one_that_nobody_has(
    api: Any, ours: Project, walk: Walk
) -> None:
    foreign = theirs(api)
    nobody = unknown(foreign)
    named = [
        one
        for one in routes()
        if ("{" in one.path or one.path in ("/v1/evolution/runs", "/v1/chat/completions"))
        and (one.method, one.path) not in MAKES
        and not (one.method == "GET" and "{" not in one.path)
    ]
    assert len(named) >= 35
    refused = 0
    for route in named:
        # Whatever is read once and kept, is kept before the two are compared. What is looked at
        # now and then (readiness) may fall between, so there are three tries.
        walk.send("instance", route, unknown(foreign))
        tries = 0
        while True:
            with counted_statements() as for_theirs:
                told = walk.send("instance", route, foreign)
            with counted_statements() as for_nobody:
                same = walk.send("instance", route, nobody)
            tries += 1
            if for_theirs == for_nobody or tries == 3:
                break
        assert told.status_code == same.status_code, (route, told.text, same.text)
        assert without_ids(told.text, foreign) == without_ids(same.text, nobody), route
        # As many statements, of the same words: one path through the code, and no telling by time.
        assert for_theirs == for_nobody, route
        assert told.status_code in (404, 412, 422), (route, told.text)
        refused += told.status_code == 404
    assert refused >= len(named) - 8


def test_a33_no_list_count_or_page_changes_when_others_work(
    api: Any, ours: Project, walk: Walk
) -> None:
    reads = [one for one in routes() if one.method == "GET"]
    paths = [address(one.path, ours) for one in reads]
    paths += [f"{path}?limit=1" for path in paths] + ["/v1/artifacts?q=only"]

    def read() -> dict[str, str]:
        client = walk.clients["instance"]
        return {path: _settled(client.get(path).text) for path in paths}

    read()  # notes when the key was used
    before = read()
    foreign = theirs(api)
    after = read()
    assert {path for path in paths if before[path] != after[path]} == set()
    assert not any("theirs" in text for text in after.values())
    # Their cursor shows our things, or nothing.
    with httpx.Client(base_url=api.url, timeout=60, trust_env=False) as other:
        other.headers["Authorization"] = f"Bearer {foreign.keys['admin']}"
        cursor = other.get("/v1/artifacts?limit=1").json()["next"]
    answer = walk.clients["viewer"].get("/v1/artifacts", params={"after": cursor})
    assert answer.status_code == 200 and "theirs" not in answer.text


def _settled(text: str) -> str:
    """An answer without the moments that reading itself moves."""
    return re.sub(r'"(last_used_at|checked_at|at)":"[^"]*"', '"":""', text)


def test_s107b_an_empty_project_finds_nothing_of_others(api: Any, ours: Project) -> None:
    async def make(db: Any) -> str:
        project = await create_project(db, "empty")
        async with db.transaction(project) as session:
            made = await create_api_key(session, project, NewKey("x", "admin"), SYSTEM)
        return made.key

    key = api.database.run(make)
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=api.url, headers=headers, timeout=60, trust_env=False) as client:
        # A write of this project fails first: what is read next is no less its own.
        failed = client.post("/v1/artifacts", json={"kind": "prompt", "name": "x", "content": 1})
        assert failed.status_code == 422, failed.text
        for route in routes():
            if route.method != "GET" or route.access == "instance":
                continue
            answer = client.get(address(route.path, ours), params={"q": "only"})
            assert answer.status_code in (200, 404), (route, answer.text)
            assert without_ids(answer.text, ours).count("ours") == 0, route
            if answer.status_code == 404:
                continue
            listed = json.loads(answer.text)
            if isinstance(listed, dict) and "data" in listed and "audit" not in route.path:
                kept = [] if "api-keys" not in route.path else listed["data"]
                assert listed["data"] == kept and not listed.get("next"), route


def test_a33_a_stream_is_not_resumed_by_another_project(api: Any, ours: Project) -> None:
    other = api.client("other")
    path = f"/v1/evolution/runs/{ours.ids['run_id']}/events/stream"
    answers = [
        other.get(one, headers={"Last-Event-ID": "1"})
        for one in (path, path.replace(ours.ids["run_id"], new_id()))
    ]
    assert [one.status_code for one in answers] == [404, 404]
    assert "data:" not in answers[0].text
