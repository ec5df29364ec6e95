"""Secrets at launches: what rollouts get, and what the set-up makes of older registrations."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from instar.evolution.backends import BackendPlan, open_backend
from instar.jobs.install_secrets import install_secrets
from instar.rollouts.bindings import BoundServer
from instar.rollouts.slots import SlotPool
from instar.runtime.tools.config import TestBinding, ToolServerConfig
from instar.runtime.tools.live import LiveTools
from instar.runtime.tools.python_tools import ToolContext
from instar.runtime.tools.secrets import StoredSecrets, references_of
from instar.settings import Settings
from instar.store.audit import SYSTEM
from instar.store.keyring import KeySource
from instar.store.secrets import NewSecret, delete_secret, put_secret
from instar.store.servers import list_servers, put_server
from instar_core.candidates import Candidate, Harness
from instar_core.errors import PermissionDenied, PrerequisiteError, UserError
from instar_core.tasks import Task

if TYPE_CHECKING:
    from instar.store.secret_box import SecretUse
    from instar.store.session import Database
    from instar.store.testing import MigratedDatabase

pytestmark = pytest.mark.postgres
LEAKY = str(Path(__file__).parent / "servers" / "leaky_server.py")
TASK = Task.model_validate(
    {
        "id": "t",
        "input": "x",
        "split": "train",
        "group": "g",
        "verifier": {"name": "exact", "config": {"answer": "x"}},
    }
)


@pytest.fixture
def keys(tmp_path: Path) -> KeySource:
    """A keyring of its own."""
    source = KeySource(tmp_path / "secrets.keys")
    source.ensure()
    return source


def put(database: MigratedDatabase, keys: KeySource, name: str, value: str, use: SecretUse) -> str:
    """Keeps a secret; its id."""

    async def work(db: Database) -> str:
        async with db.transaction(database.project_id) as session:
            new = NewSecret(name, value, use)
            return (await put_secret(session, database.project_id, new, keys, SYSTEM)).id

    return database.run(work)


def leaky(**more: Any) -> ToolServerConfig:
    return ToolServerConfig.model_validate(
        {"name": "leaky", "command": "{python}", "args": [LEAKY], **more}
    )


def bound(server: ToolServerConfig, **env: str) -> BoundServer:
    return BoundServer(server, TestBinding(command="{python}", args=(LEAKY,), env=env))


def in_slot(
    database: MigratedDatabase, keys: KeySource, server: BoundServer, tmp_path: Path
) -> tuple[dict[str, Any], str]:
    """What a sandbox copy was started with, and what it says of it."""
    kept = tmp_path / "kept.json"

    async def work(db: Database) -> tuple[dict[str, Any], str]:
        reader = StoredSecrets(db, database.project_id, keys, "rollouts")
        pool = SlotPool({"leaky": server}, 1, tmp_path / "slots", reader)
        try:
            async with pool.lease(TASK) as slot:
                await slot.call("leaky", "keep", {"path": str(kept)})
                said = await slot.call("leaky", "environment", {})
            return json.loads(kept.read_text()), said.text
        finally:
            await pool.close()

    return database.run(work)


def test_a_test_binding_gets_its_own_secret_and_never_productions(
    database: MigratedDatabase, keys: KeySource, tmp_path: Path
) -> None:
    test = put(database, keys, "test", "value-for-tests-1", "rollouts")
    live = put(database, keys, "live", "value-live-12345", "production")
    server = leaky(env={"LEAK_KEY": f"${{secret:{live}}}"})
    seen, said = in_slot(
        database, keys, bound(server, LEAK_KEY=f"a ${{secret:{test}}} b"), tmp_path
    )
    assert seen["env"]["LEAK_KEY"] == "a value-for-tests-1 b"
    assert "value-live-12345" not in json.dumps(seen)
    assert "value-for-tests-1" not in said and "[redacted]" in said


def test_promise_6_a_rollout_that_names_productions_secret_does_not_start(
    database: MigratedDatabase, keys: KeySource, tmp_path: Path
) -> None:
    live = put(database, keys, "live", "value-live-12345", "production")
    with pytest.raises(PermissionDenied, match="'leaky' cannot be started.*'live'") as refused:
        in_slot(database, keys, bound(leaky(), LEAK_KEY=f"${{secret:{live}}}"), tmp_path)
    assert "value-live" not in str(refused.value)
    assert not (tmp_path / "kept.json").exists()


def test_promise_6_a_server_free_of_effects_gets_no_production_secret_in_rollouts(
    database: MigratedDatabase, keys: KeySource, tmp_path: Path
) -> None:
    live = put(database, keys, "live", "value-live-12345", "production")
    reference = f"${{secret:{live}}}"
    quiet = leaky(effect_free=True, env={"LEAK_KEY": reference})
    loud = leaky(effect_free=True, args=[LEAKY, "--token", reference])

    async def work(db: Database, server: ToolServerConfig) -> str:
        reader = StoredSecrets(db, database.project_id, keys, "rollouts")
        pool = SlotPool({"leaky": BoundServer(server, None)}, 1, tmp_path / "slots", reader)
        try:
            return (await pool.call_shared("leaky", "environment", {})).text
        finally:
            await pool.close()

    assert "LEAK_KEY" not in json.loads(database.run(lambda db: work(db, quiet)))
    with pytest.raises(PermissionDenied, match="never used in rollouts: 'live'"):
        database.run(lambda db: work(db, loud))


def test_a_quote_refuses_a_binding_whose_secret_is_gone_or_productions(
    database: MigratedDatabase, keys: KeySource
) -> None:
    put(database, keys, "gone", "value-for-tests-1", "rollouts")
    live = put(database, keys, "live", "value-live-12345", "production")
    candidate = Candidate(
        components={},
        harness=Harness.model_validate(
            {"model": "scripted/x", "tool_protocol": "native", "tools": [{"name": "leaky"}]}
        ),
    )

    async def work(db: Database, reference: str) -> None:
        binding = {"command": "{python}", "args": [LEAKY], "env": {"LEAK_KEY": reference}}
        config = leaky(test_bindings={"t": binding}).model_dump(mode="json")
        async with db.transaction(database.project_id) as session:
            await put_server(session, database.project_id, "leaky", config, SYSTEM)
        plan = BackendPlan(
            project_id=database.project_id,
            candidate=candidate,
            bindings={"leaky": "t"},
        )
        async with open_backend(plan, db, Settings()):
            raise AssertionError("it must not open")

    async def delete(db: Database) -> None:
        async with db.transaction(database.project_id) as session:
            await delete_secret(session, database.project_id, "gone", SYSTEM)

    database.run(delete)
    with pytest.raises(UserError, match="there is no secret 'gone'"):
        database.run(lambda db: work(db, "${secret:gone}"))
    with pytest.raises(UserError, match="secret for production"):
        database.run(lambda db: work(db, f"${{secret:{live}}}"))


def test_python_tools_get_their_secret_in_their_context(
    database: MigratedDatabase, keys: KeySource
) -> None:
    live = put(database, keys, "live", "value-live-12345", "production")
    config = ToolServerConfig(
        name="py",
        kind="python",
        functions=("instar_test_tools:show",),
        env={"KEY": f"${{secret:{live}}}"},
    )

    async def work(db: Database) -> str:
        reader = StoredSecrets(db, database.project_id, keys, "production")
        async with LiveTools([config], reader) as tools:
            return (await tools.call("py", "show", {})).text

    module = types.ModuleType("instar_test_tools")

    def show(context: ToolContext) -> str:
        """Says how long its key is, and the key."""
        return f"{len(context.env['KEY'])} {context.env['KEY']}"

    show.__annotations__ = {"context": ToolContext, "return": str}
    module.show = show  # type: ignore[attr-defined]
    sys.modules["instar_test_tools"] = module
    try:
        assert database.run(work) == "16 [redacted]"
    finally:
        del sys.modules["instar_test_tools"]


# The set-up step


def old_rows(database: MigratedDatabase) -> None:
    """Registrations as 0001 kept them: values in the clear, one of them out of use."""
    binding = {"command": "x", "env": {"API_KEY": "old-value-binding"}}
    config = leaky(
        env={"API_KEY": "old-value-env-1", "MODE": "fast"},
        args=[LEAKY, "--token", "old-value-arg-1"],
        test_bindings={"t": binding},
    ).model_dump(mode="json")
    database.query(
        "insert into mcp_server (id, project_id, name, config) "
        "values (gen_random_uuid(), %s, 'leaky', %s)",
        database.project_id,
        json.dumps(config),
    )
    gone = leaky(env={"API_KEY": "old-value-deleted"}).model_dump(mode="json") | {"name": "gone"}
    database.query(
        "insert into mcp_server (id, project_id, name, config, deleted_at) "
        "values (gen_random_uuid(), %s, 'gone', %s, now())",
        database.project_id,
        json.dumps(gone),
    )


def test_the_set_up_moves_values_of_older_registrations_once(
    database: MigratedDatabase, tmp_path: Path
) -> None:
    old_rows(database)
    settings = Settings(data_dir=tmp_path)
    assert database.run(lambda db: install_secrets(db, settings, SYSTEM)) == 3
    assert (tmp_path / "secrets.keys").stat().st_mode & 0o777 == 0o600
    before = database.query("select config::text from mcp_server order by name")
    assert "old-value" not in str(before)
    assert database.run(lambda db: install_secrets(db, settings, SYSTEM)) == 0
    assert database.query("select config::text from mcp_server order by name") == before
    assert database.query("select count(*) from secret") == [(3,)]
    events = str(database.query("select action, details::text from audit_event"))
    assert "server.move_secrets" in events and "old-value" not in events

    async def read(db: Database) -> dict[str, str]:
        async with db.transaction(database.project_id) as session:
            (row,) = await list_servers(session, database.project_id)
        config = ToolServerConfig.model_validate(row.config)
        reader = StoredSecrets(db, database.project_id, KeySource.of(settings), "production")
        return await reader.reveal(references_of(config))

    assert sorted(database.run(read).values()) == ["old-value-arg-1", "old-value-env-1"]


def test_the_set_up_makes_no_new_key_in_place_of_a_lost_one(
    database: MigratedDatabase, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path)
    old_rows(database)
    database.run(lambda db: install_secrets(db, settings, SYSTEM))
    lost = KeySource.of(settings).read().active
    (tmp_path / "secrets.keys").rename(tmp_path / "elsewhere")
    with pytest.raises(PrerequisiteError, match=f"{lost}.*INSTAR_SECRETS__ABANDON={lost}"):
        database.run(lambda db: install_secrets(db, settings, SYSTEM))
    assert not (tmp_path / "secrets.keys").exists()
    given_up = Settings(data_dir=tmp_path, secrets={"abandon": lost})  # type: ignore[arg-type]
    for _ in range(2):
        database.run(lambda db: install_secrets(db, given_up, SYSTEM))
    assert database.query("select count(*) from secret where deleted_at is null") == [(0,)]
