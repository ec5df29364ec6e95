"""Secrets at rest: encrypted, bound to their row, rotated under kill -9, never read back (A36)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from instar.redaction import mask_known
from instar.settings import SecretsSettings, Settings
from instar.store.audit import SYSTEM
from instar.store.keyring import KeySource
from instar.store.secret_rotation import abandon_key, prune_keys, rotate_keys
from instar.store.secrets import (
    NewSecret,
    check_keys,
    delete_secret,
    list_secrets,
    put_secret,
    read_secret,
    reveal_secrets,
)
from instar.store.servers import put_server
from instar_core.base import new_id
from instar_core.errors import (
    ConflictError,
    InstarError,
    NotFoundError,
    PermissionDenied,
    PrerequisiteError,
    StoreError,
    UserError,
)

if TYPE_CHECKING:
    from instar.store.secret_box import SecretUse
    from instar.store.session import Database
    from instar.store.testing import MigratedDatabase

pytestmark = pytest.mark.postgres
CANARY = "canary-Zq7-4f1d9e0b2c"


@pytest.fixture
def keys(tmp_path: Path) -> KeySource:
    """A keyring of its own, with one key."""
    source = KeySource(tmp_path / "secrets.keys")
    source.ensure()
    return source


def put(
    database: MigratedDatabase,
    keys: KeySource,
    name: str,
    value: str,
    use: SecretUse = "production",
) -> str:
    """Keeps a secret; its id."""

    async def work(db: Database) -> str:
        async with db.transaction(database.project_id) as session:
            new = NewSecret(name, value, use)
            return (await put_secret(session, database.project_id, new, keys, SYSTEM)).id

    return database.run(work)


def reveal(
    database: MigratedDatabase,
    keys: KeySource,
    *ids: str,
    use: SecretUse = "production",
    project: str = "",
) -> dict[str, str]:
    """The values of secrets."""

    async def work(db: Database) -> dict[str, str]:
        where = project or database.project_id
        async with db.transaction(where) as session:
            return await reveal_secrets(session, where, ids, keys, use)

    return database.run(work)


def ready(database: MigratedDatabase, keys: KeySource) -> str:
    async def work(db: Database) -> str:
        return await check_keys(db, keys)

    return database.run(work)


def test_a36_what_is_stored_is_ciphertext_and_comes_back(
    database: MigratedDatabase, keys: KeySource
) -> None:
    made = put(database, keys, "desk.API_KEY", CANARY)
    assert reveal(database, keys, made) == {made: CANARY}
    everything = repr(database.query("select * from secret")) + repr(
        database.query("select subject, details from audit_event")
    )
    assert "desk.API_KEY" in everything
    encoded = base64.b64encode(CANARY.encode()).decode()
    for form in (CANARY, CANARY[::-1], CANARY.encode().hex(), encoded):
        assert form not in everything
    ring = keys.read()
    assert ring.keys[ring.active] not in database.query("select ciphertext from secret")[0][0]
    assert mask_known(f"it is {CANARY}!") == "it is [redacted]!"


def test_a_second_put_is_a_revision_under_the_same_id(
    database: MigratedDatabase, keys: KeySource
) -> None:
    first = put(database, keys, "token", "value-number-one")
    second = put(database, keys, "token", "value-number-two")
    assert first == second
    assert reveal(database, keys, first) == {first: "value-number-two"}
    assert database.query("select revision, use from secret") == [(2, "production")]
    actions = database.query("select action, details::text from audit_event order by seq")
    assert [row[0] for row in actions] == ["secret.put", "secret.put"]
    assert "value-number" not in str(actions)


def test_a_ciphertext_says_nothing_of_a_short_values_length(
    database: MigratedDatabase, keys: KeySource
) -> None:
    for length in (6, 40):
        put(database, keys, f"s{length}", "x" * length)
    sizes = {row[0] for row in database.query("select octet_length(ciphertext) from secret")}
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("use = 'rollouts'", "name = 'a'"),
        ("revision = revision + 1", "name = 'a'"),
        ("name = 'c'", "name = 'a'"),
        ("ciphertext = (select ciphertext from secret where name = 'b')", "name = 'a'"),
        (
            "(ciphertext, nonce) = (select ciphertext, nonce from secret where name = 'b')",
            "name = 'a'",
        ),
        ("ciphertext = set_byte(ciphertext, 3, 255 - get_byte(ciphertext, 3))", "name = 'a'"),
        ("nonce = set_byte(nonce, 3, 255 - get_byte(nonce, 3))", "name = 'a'"),
        ("ciphertext = ''", "name = 'a'"),
    ],
)
def test_a36_a_row_changed_by_hand_does_not_open(
    database: MigratedDatabase, keys: KeySource, change: str, where: str
) -> None:
    made = put(database, keys, "a", "value-of-a-12345")
    put(database, keys, "b", "value-of-b-12345")
    database.query(f"update secret set {change} where {where}")
    with pytest.raises(StoreError, match="changed by hand or damaged"):
        reveal(database, keys, made)
    assert "changed by hand or damaged" in ready(database, keys)


def test_a36_a_secret_of_another_project_neither_shows_nor_opens(
    database: MigratedDatabase, keys: KeySource
) -> None:
    made = put(database, keys, "a", "value-of-a-12345")
    other = new_id()
    database.query("insert into project (id, name) values (%s, 'other')", other)
    with pytest.raises(UserError, match="there is no secret"):
        reveal(database, keys, made, project=other)
    database.query("update secret set project_id = %s", other)
    with pytest.raises(StoreError, match="changed by hand or damaged"):
        reveal(database, keys, made, project=other)


def test_production_secrets_are_not_for_rollouts(
    database: MigratedDatabase, keys: KeySource
) -> None:
    live = put(database, keys, "live", "value-live-1234")
    test = put(database, keys, "test", "value-test-1234", "rollouts")
    assert reveal(database, keys, test, use="rollouts") == {test: "value-test-1234"}
    with pytest.raises(PermissionDenied, match="never used in rollouts: 'live'") as refused:
        reveal(database, keys, test, live, use="rollouts")
    assert "value-" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("../x", "fine-value"),
        ("", "fine-value"),
        ("x" * 129, "fine-value"),
        ("a b", "fine-value"),
        ("ok", ""),
        ("ok", "nul-\x00-canary"),
        ("ok", "canary" * 20_000),
        ("ok", "half-\ud800-canary"),
    ],
)
def test_bad_names_and_values_store_nothing_and_quote_no_value(
    database: MigratedDatabase, keys: KeySource, name: str, value: str
) -> None:
    with pytest.raises(UserError) as refused:
        put(database, keys, name, value)
    assert "canary" not in str(refused.value) and "fine-value" not in str(refused.value)
    assert database.query("select count(*) from secret") == [(0,)]
    assert database.query("select count(*) from audit_event") == [(0,)]


def test_deleting_wipes_and_is_refused_while_a_server_refers_to_it(
    database: MigratedDatabase, keys: KeySource
) -> None:
    made = put(database, keys, "desk.KEY", "value-of-desk-1")

    async def register(db: Database) -> None:
        async with db.transaction(database.project_id) as session:
            config = {"name": "desk", "command": "x", "env": {"KEY": f"k ${{secret:{made}}}"}}
            await put_server(session, database.project_id, "desk", config, SYSTEM)

    def delete(name: str, force: bool = False) -> None:
        async def work(db: Database) -> None:
            async with db.transaction(database.project_id) as session:
                await delete_secret(session, database.project_id, name, SYSTEM, force=force)

        database.run(work)

    database.run(register)
    with pytest.raises(ConflictError, match="used by the tool server 'desk'"):
        delete("desk.KEY")
    assert reveal(database, keys, made)
    delete("desk.KEY", force=True)
    assert database.query("select ciphertext, nonce, key_id from secret") == [(b"", b"", "")]
    with pytest.raises(UserError, match="the secret 'desk.KEY' was deleted"):
        reveal(database, keys, made)
    with pytest.raises(NotFoundError, match="no secret 'desk.KEY'"):
        delete("desk.KEY")
    assert put(database, keys, "desk.KEY", "value-of-desk-2") != made, "the name is free again"


def test_an_unknown_name_names_the_nearest(database: MigratedDatabase, keys: KeySource) -> None:
    put(database, keys, "desk.API_KEY", "value-of-desk-1")

    async def work(db: Database) -> None:
        async with db.transaction(database.project_id) as session:
            assert len((await list_secrets(session, database.project_id)).items) == 1
            await read_secret(session, database.project_id, "desk.API_KYE")

    with pytest.raises(NotFoundError, match=r"Near to it: desk\.API_KEY"):
        database.run(work)


# The keyring


def test_the_key_file_is_private_and_named_by_fingerprints(keys: KeySource) -> None:
    assert keys.path.stat().st_mode & 0o777 == 0o600
    ring = keys.read()
    document = json.loads(keys.path.read_text())
    assert list(document["keys"]) == [ring.active]
    key = ring.keys[ring.active]
    assert len(key) == 32 and key.hex()[:16] != ring.active
    assert base64.b64encode(key).decode() not in repr(ring)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o620])
def test_a36_a_key_file_that_others_may_read_is_refused(keys: KeySource, mode: int) -> None:
    keys.path.chmod(mode)
    with pytest.raises(PrerequisiteError, match="chmod 600"):
        KeySource(keys.path).read()


def test_a_mounted_key_file_may_be_readable_by_its_group(keys: KeySource) -> None:
    keys.path.chmod(0o440)
    assert KeySource(keys.path).read().keys == keys.read().keys


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"format": 1, "active": "x", "keys": {}}', '{"format": 9}', "\x00\xff"],
)
def test_a_damaged_key_file_is_refused_without_its_content(keys: KeySource, content: str) -> None:
    good = keys.path.read_text()
    key = next(iter(json.loads(good)["keys"].values()))["key"]
    for text in (content, good[:-20], good.replace(key[:4], "AAAA")):
        keys.path.write_text(text)
        with pytest.raises(PrerequisiteError) as refused:
            KeySource(keys.path).read()
        assert key not in str(refused.value)


def test_keys_may_come_from_the_environment_and_then_cannot_be_written(
    database: MigratedDatabase, tmp_path: Path
) -> None:
    old, new = (base64.b64encode(os.urandom(32)).decode() for _ in range(2))
    first = KeySource.of(Settings(data_dir=tmp_path, secrets=SecretsSettings(keys=old)))  # type: ignore[arg-type]
    made = put(database, first, "a", "value-of-a-12345")
    with pytest.raises(PrerequisiteError, match="Put the new key first"):
        first.write(first.read())
    both = KeySource(tmp_path / "none", f"{new},{old}")
    assert reveal(database, both, made)
    done = database.run(lambda db: rotate_keys(db, both, SYSTEM))
    assert (done.moved, done.key_id) == (1, both.read().active)
    assert reveal(database, KeySource(tmp_path / "none", new), made) == {made: "value-of-a-12345"}
    assert old not in repr(first.read()) and "secrets.keys" not in os.listdir(tmp_path)
    with pytest.raises(PrerequisiteError, match="entry 2 is not base64") as refused:
        KeySource(tmp_path / "none", f"{new},sesame-open").read()
    assert new not in str(refused.value) and "sesame" not in str(refused.value)


def test_a_wrong_or_missing_key_is_not_ready_with_the_reason(
    database: MigratedDatabase, keys: KeySource, tmp_path: Path
) -> None:
    nowhere = KeySource(tmp_path / "elsewhere.keys")
    assert ready(database, nowhere) == "ok", "nothing is stored that needs a key"
    made = put(database, keys, "a", "value-of-a-12345")
    assert ready(database, keys) == "ok"
    assert "cannot be read" in ready(database, nowhere)
    nowhere.ensure()
    active = keys.read().active
    for words in (active, "INSTAR_SECRETS__ABANDON", str(nowhere.path)):
        assert words in ready(database, nowhere)
    with pytest.raises(PrerequisiteError, match=active):
        reveal(database, nowhere, made)


def test_a_lost_key_can_be_given_up_and_only_a_lost_one(
    database: MigratedDatabase, keys: KeySource, tmp_path: Path
) -> None:
    put(database, keys, "a", "value-of-a-12345")
    lost = keys.read().active
    with pytest.raises(PrerequisiteError, match="nothing is lost"):
        database.run(lambda db: abandon_key(db, keys, lost))
    other = KeySource(tmp_path / "other.keys")
    assert database.run(lambda db: abandon_key(db, other, lost)) == 1
    assert ready(database, other) == "ok"
    assert database.query("select ciphertext from secret") == [(b"",)]
    assert database.query("select action from audit_event where action = 'secret.abandon'")


# Rotation


def test_rotation_moves_every_project_and_prunes_only_what_is_unused(
    database: MigratedDatabase, keys: KeySource
) -> None:
    ids = [put(database, keys, f"s{number}", f"value-number-{number}") for number in range(7)]
    before = keys.read().active
    done = database.run(lambda db: rotate_keys(db, keys, SYSTEM, batch=3))
    assert (done.moved, done.resumed, done.pruned) == (7, False, ())
    assert done.key_id == keys.read().active != before
    assert before in keys.read().keys, "kept until somebody says so"
    assert database.query("select distinct key_id from secret") == [(done.key_id,)]
    values = reveal(database, keys, *ids)
    assert [values[one] for one in ids] == [f"value-number-{number}" for number in range(7)]
    database.query("update secret set key_id = %s where name = 's3'", before)
    assert database.run(lambda db: prune_keys(db, keys)) == (), "a row says that it needs it"
    database.query("update secret set key_id = %s where name = 's3'", done.key_id)
    assert database.run(lambda db: prune_keys(db, keys)) == (before,)
    assert list(keys.read().keys) == [done.key_id]
    assert reveal(database, keys, *ids) == values
    rotated = database.query("select details::text from audit_event where action='secret.rotate'")
    assert len(rotated) == 3, "one row for each batch"


def test_rotation_goes_on_around_a_secret_that_does_not_open(
    database: MigratedDatabase, keys: KeySource
) -> None:
    ids = [put(database, keys, f"s{number}", f"value-number-{number}") for number in range(3)]
    database.query("update secret set revision = 9 where name = 's1'")
    with pytest.raises(PrerequisiteError, match="1 secret could not be moved.*'s1'"):
        database.run(lambda db: rotate_keys(db, keys, SYSTEM, prune=True))
    assert len(keys.read().keys) == 2, "the key that it needs is still there"
    assert len(reveal(database, keys, ids[0], ids[2])) == 2


_ROTATE = """
import asyncio, sys
from pathlib import Path
from instar.store.audit import SYSTEM
from instar.store.keyring import KeySource
from instar.store.secret_rotation import rotate_keys
from instar.store.session import Database

async def main():
    db = Database(sys.argv[1], pool_size=1)
    print(await rotate_keys(db, KeySource(Path(sys.argv[2])), SYSTEM, batch=1, prune=True))
    await db.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a36_rotation_killed_again_and_again_loses_nothing_nor_do_writers_beside_it(
    database: MigratedDatabase, keys: KeySource
) -> None:
    values = {f"s{number}": f"value-number-{number}" for number in range(24)}
    ids = {name: put(database, keys, name, value) for name, value in values.items()}
    first = keys.read().active
    command = [sys.executable, "-c", _ROTATE, database.app_url, str(keys.path)]
    for kill_at in (0, 1, 9, 17):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None:
            moved = database.query("select count(*) from secret where key_id <> %s", first)[0][0]
            if (kill_at == 0 and keys.read().active != first) or 0 < kill_at <= moved:
                process.send_signal(signal.SIGKILL)
                break
        process.communicate()
        # Somebody sets a secret between two attempts, and one that was moved already.
        values[f"new{kill_at}"] = f"value-meanwhile-{kill_at}"
        ids[f"new{kill_at}"] = put(database, keys, f"new{kill_at}", values[f"new{kill_at}"])
        values["s0"] = f"value-changed-{kill_at}"
        assert put(database, keys, "s0", values["s0"]) == ids["s0"]
        found = reveal(database, keys, *ids.values())
        assert {name: found[one] for name, one in ids.items()} == values
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Rotation(" in done.stdout
    assert len(keys.read().keys) == 1 and first not in keys.read().keys
    found = reveal(database, keys, *ids.values())
    assert {name: found[one] for name, one in ids.items()} == values
    assert [path.name for path in keys.path.parent.glob("*keys*")] == [keys.path.name]


def test_writers_during_a_rotation_with_pruning_lose_nothing(
    database: MigratedDatabase, keys: KeySource
) -> None:
    values = {f"s{number}": f"value-number-{number}" for number in range(12)}
    ids = {name: put(database, keys, name, value) for name, value in values.items()}

    async def write(db: Database, name: str) -> None:
        # A process of its own would have a source of its own.
        mine = KeySource(keys.path)
        for turn in range(5):
            values[name] = f"value-of-{name}-turn-{turn}"
            async with db.transaction(database.project_id) as session:
                new = NewSecret(name, values[name])
                await put_secret(session, database.project_id, new, mine, SYSTEM)

    async def rotate(db: Database) -> None:
        for _ in range(3):
            await rotate_keys(db, KeySource(keys.path), SYSTEM, batch=2, prune=True)

    async def both(db: Database) -> None:
        await asyncio.gather(rotate(db), *(write(db, name) for name in ("s1", "s5", "s9")))

    database.run(both)
    found = reveal(database, keys, *ids.values())
    assert {name: found[one] for name, one in ids.items()} == values
    used = {row[0] for row in database.query("select distinct key_id from secret")}
    assert used <= set(keys.read().keys)


def test_errors_are_ours(database: MigratedDatabase, keys: KeySource) -> None:
    put(database, keys, "a", "value-of-a-12345")
    keys.path.unlink()
    with pytest.raises(InstarError):
        database.run(lambda db: rotate_keys(db, KeySource(keys.path), SYSTEM))
