"""From the first release to this version with real old data: nothing is lost, all of it works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from instar.audit.verify import AuditReport, Evidence, verify_project
from instar.settings import Settings
from instar.store.agents import load_candidate, read_agent, save_agent
from instar.store.artifacts import ArtifactRef
from instar.store.audit import SYSTEM
from instar.store.evolution import read_evolution_run
from instar.store.labels import LabelMove, list_label_events, move_label
from instar.store.migrate import check, head_revision, upgrade
from instar.store.projects import resolve_api_key
from instar.store.session import Database
from instar.store.testing import APP_PASSWORD, MigratedDatabase
from instar_core.errors import PermissionDenied

pytestmark = pytest.mark.postgres

# What 0002 calls by another name; everything else must be as it was, to the byte.
RENAMED = {
    ("artifact", "kind"),
    ("api_key", "role"),
    ("alembic_version", "version_num"),
}


def _up(database: MigratedDatabase) -> None:
    done = upgrade(database.owner_url, app_password=APP_PASSWORD)
    assert (done.before, done.after) == ("0001", head_revision())


def _columns(database: MigratedDatabase) -> dict[str, list[str]]:
    """Table → its columns, without those that are renamed in content."""
    found: dict[str, list[str]] = {}
    for table, column in database.query(
        "select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid "
        "where c.relnamespace = 'instar'::regnamespace and c.relkind in ('r', 'p') "
        "and not c.relispartition and a.attnum > 0 and not a.attisdropped order by 1, a.attnum"
    ):
        if (table, column) not in RENAMED:
            found.setdefault(table, []).append(column)
    return found


def _contents(database: MigratedDatabase, columns: dict[str, list[str]]) -> dict[str, Any]:
    """Table → every row of it, as text and in order."""
    found: dict[str, Any] = {}
    for table, names in columns.items():
        texts = ", ".join(f'"{name}"::text' for name in names)
        places = ", ".join(str(number + 1) for number in range(len(names)))
        found[table] = database.query(f'select {texts} from instar."{table}" order by {places}')
    return found


def test_s113_no_row_and_no_value_of_the_first_release_is_lost(released: Any) -> None:
    database, told = released.database, released.told
    columns = _columns(database)
    before = _contents(database, columns)
    assert {table: len(rows) for table, rows in before.items()} | {"alembic_version": 1} == {
        **told["counts"]
    }
    assert before["effect"] and before["sealed_task"] and before["promotion"]
    _up(database)
    after = _contents(database, columns)
    for table, rows in before.items():
        assert after[table] == rows, table
    assert [
        [row[0], row[1]]
        for row in database.query(
            "select hash, content::text from message where hash = any(%s) order by hash",
            [item[0] for item in told["messages"]],
        )
    ] == told["messages"]


def test_s113_agents_load_and_labels_resolve_as_before(released: Any) -> None:
    database, told = released.database, released.told
    _up(database)
    project = told["project"]

    async def work(db: Database) -> dict[str, Any]:
        found: dict[str, Any] = {"agents": {}, "labels": {}}
        async with db.transaction(project) as session:
            for name, digests in told["agents"].items():
                found["agents"][name] = {
                    ref: (await load_candidate(session, project, name, ref)).digest
                    for ref in digests
                }
            for name, labels in told["labels"].items():
                found["labels"][name] = {
                    label: (await read_agent(session, project, name, label)).version
                    for label in labels
                }
            events = await list_label_events(session, ArtifactRef(project, "agent", "clerk"))
            assert len(events) == 4
        return found

    found = database.run(work)
    assert found["agents"] == told["agents"]
    assert found["labels"] == told["labels"]


def test_s113_an_old_agent_goes_on_from_its_last_version(released: Any) -> None:
    database, told = released.database, released.told
    _up(database)
    project = told["project"]

    async def work(db: Database) -> tuple[int, int, str]:
        async with db.transaction(project) as session:
            old = await load_candidate(session, project, "clerk", "3")
            changed = old.with_component("instructions", "Name the queue, and why.")
            saved = await save_agent(session, project, "clerk", changed, author=SYSTEM)
            ref = ArtifactRef(project, "agent", "clerk")
            await move_label(session, ref, LabelMove("staging", saved.version, 3), SYSTEM)
        async with db.transaction(project) as session:
            now = await read_agent(session, project, "clerk", "staging")
            again = await load_candidate(session, project, "clerk", "staging")
            assert again.digest == changed.digest
            numbers = database.query(
                "select count(distinct a.id) from artifact a join version v on v.artifact_id = a.id"
                " where a.name = 'clerk/instructions' and a.deleted_at is null"
            )
            run = await read_evolution_run(session, _run_of(database))
            return now.version, int(numbers[0][0]), run.state

    # The component goes on as the artifact that it was, not as a second one of the same name.
    assert database.run(work) == (4, 1, "succeeded")


def _run_of(database: MigratedDatabase) -> str:
    return str(database.query("select id from evolution_run")[0][0])


def test_s113_old_keys_open_what_they_opened(released: Any) -> None:
    database, told = released.database, released.told
    _up(database)
    keys = told["keys"]

    async def work(db: Database) -> dict[str, tuple[str, str, bool]]:
        found = {}
        for name in ("admin", "member", "reader", "local"):
            owner = await resolve_api_key(db, keys[name])
            found[name] = (owner.project_id, owner.role, owner.instance)
        with pytest.raises(PermissionDenied):
            await resolve_api_key(db, keys["revoked"])
        return found

    project = told["project"]
    assert database.run(work) == {
        "admin": (project, "admin", False),
        "member": (project, "operator", False),
        "reader": (project, "viewer", False),
        "local": (project, "admin", True),
    }


def test_s113_the_audit_chain_goes_on_across_formats(released: Any, tmp_path: Path) -> None:
    database, told = released.database, released.told
    before = database.query("select count(*) from audit_event")[0][0]
    _up(database)
    project = told["project"]
    evidence = Evidence.of(Settings(data_dir=tmp_path))

    async def work(db: Database) -> tuple[AuditReport, AuditReport]:
        first = await verify_project(db, project, evidence)
        async with db.transaction(project) as session:
            ref = ArtifactRef(project, "agent", "clerk")
            await move_label(session, ref, LabelMove("staging", 1, 3), SYSTEM)
        return first, await verify_project(db, project, evidence)

    first, then = database.run(work)
    assert (first.ok, first.rows) == (True, before), first
    assert (then.ok, then.rows) == (True, before + 1), then
    # It can fail: a changed row of the old format is found after the upgrade.
    database.query("update audit_event set action = 'label.steal' where seq = 2")
    changed = database.run(lambda db: verify_project(db, project, evidence))
    assert not changed.ok and changed.bad is not None and changed.bad.seq == 2


def test_s121_the_upgrade_of_the_first_release_is_ready_and_repeats(released: Any) -> None:
    database = released.database
    readiness = check(database.owner_url)
    assert not readiness.ready and "'0001'" in readiness.reason
    assert "instar db upgrade" in readiness.reason
    _up(database)
    assert check(database.app_url) == (True, "")
    again = upgrade(database.owner_url, app_password=APP_PASSWORD)
    assert (again.before, again.after) == (head_revision(), head_revision())
