"""A backup and its way back: equal to the row, the grant and the digest, or refused in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from instar.audit.outside import OutsideCopy
from instar.audit.verify import Evidence, verify_project
from instar.audit.writer import Sealer
from instar.backup.manifest import KeyFile
from instar.store.agents import load_candidate
from instar.store.artifacts import ArtifactRef
from instar.store.audit import SYSTEM, Author
from instar.store.keyring import KeySource
from instar.store.labels import LabelMove, move_label
from instar.store.projects import resolve_api_key
from instar.store.secrets import reveal_secrets
from instar.store.session import Database
from instar_core.errors import PrerequisiteError, UserError

if TYPE_CHECKING:
    from tests.integration.backup.conftest import Bench, Place

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

# Everything in the schema that is not a row: what it is, whose it is, who may do what with it.
CATALOG = {
    "relations": """
        select c.relname, c.relkind, pg_get_userbyid(c.relowner), c.relrowsecurity,
          c.relforcerowsecurity, c.relispartition, pg_get_expr(c.relpartbound, c.oid),
          (select array_agg(a order by a) from unnest(c.relacl::text[]) a)
        from pg_class c where c.relnamespace = 'instar'::regnamespace""",
    "columns": """
        select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
          a.attgenerated, a.attidentity, pg_get_expr(d.adbin, d.adrelid), a.attacl::text,
          (select count(*) from pg_attribute b where b.attrelid = a.attrelid
             and b.attnum <= a.attnum and b.attnum > 0 and not b.attisdropped)
        from pg_attribute a join pg_class c on c.oid = a.attrelid
        left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where c.relnamespace = 'instar'::regnamespace and a.attnum > 0 and not a.attisdropped""",
    "constraints": """
        select conrelid::regclass::text, conname, contype, convalidated, pg_get_constraintdef(oid)
        from pg_constraint where connamespace = 'instar'::regnamespace""",
    "indexes": """
        select tablename, indexname, indexdef from pg_indexes where schemaname = 'instar'""",
    "policies": """
        select tablename, policyname, permissive, roles::text, cmd, qual, with_check
        from pg_policies where schemaname = 'instar'""",
    "functions": """
        select p.oid::regprocedure::text, pg_get_userbyid(p.proowner), p.prosecdef, p.provolatile,
          p.proparallel, p.proconfig::text, pg_get_functiondef(p.oid),
          (select array_agg(a order by a) from unnest(p.proacl::text[]) a)
        from pg_proc p where p.pronamespace = 'instar'::regnamespace""",
    "triggers": """
        select tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) from pg_trigger
        where not tgisinternal""",
    "sequences": """
        select sequencename, last_value from pg_sequences where schemaname = 'instar'""",
    "schema": """
        select nspname, pg_get_userbyid(nspowner),
          (select array_agg(a order by a) from unnest(nspacl::text[]) a)
        from pg_namespace where nspname = 'instar'""",
}


def catalog(place: Place) -> dict[str, list[str]]:
    """The whole catalog of the schema, sorted.

    Read back, PostgreSQL casts the words of an ``in (…)`` one by one or all at once; both are the
    same check, so casts and parentheses of constraints are left out.
    """
    found = {
        name: sorted(repr(row) for row in place.database.query(query))
        for name, query in CATALOG.items()
    }
    casts = re.compile(r"::(character varying|text)(\[\])?|[()]")
    found["constraints"] = sorted(casts.sub("", row) for row in found["constraints"])
    return found


def digests(place: Place, told: dict[str, Any]) -> dict[str, Any]:
    """Agent → version → digest, as the application loads them."""

    async def work(db: Database) -> dict[str, Any]:
        async with db.transaction(told["project"]) as session:
            return {
                name: {
                    ref: (await load_candidate(session, told["project"], name, ref)).digest
                    for ref in refs
                }
                for name, refs in told["agents"].items()
            }

    return place.run(work)


def actions(place: Place) -> list[str]:
    """The last actions of the admin stream, oldest first."""
    rows = place.database.query(
        "select action from audit_event where project_id = %s and stream = 'admin' order by seq",
        place.database.project_id,
    )
    return [str(row[0]) for row in rows]


def test_s124_a_restored_installation_is_the_one_that_was_backed_up(bench: Bench) -> None:
    taken = bench.back_up()
    assert taken.encrypted and taken.manifest.rows > 2000
    assert {table.name for table in taken.manifest.tables} >= {"effect", "secret", "sealed_task"}
    there = bench.place("there")
    report = bench.restore(there)
    assert report.hashes_equal is True
    assert (report.tables, report.rows) == (len(taken.manifest.tables), taken.manifest.rows)
    assert digests(there, bench.told) == bench.told["agents"]
    before, after = catalog(bench.source), catalog(there)
    assert len(before["functions"]) > 10 and len(before["policies"]) > 30
    for part, rows in before.items():
        assert after[part] == rows, part
    assert actions(there)[-2:] == ["installation.backup", "installation.restore"]
    assert actions(bench.source)[-1] == "installation.backup"


def test_s124_the_restored_installation_is_opened_by_its_keys(bench: Bench) -> None:
    bench.back_up()
    there = bench.place("there")
    bench.restore(there)
    for name in ("secrets.keys", "audit_signing.key"):
        assert (there.data_dir / name).read_bytes() == (bench.source.data_dir / name).read_bytes()
        assert (there.data_dir / name).stat().st_mode & 0o777 == 0o600
    assert not (there.data_dir / "api.key").exists(), "the install step makes this machine's key"
    project = bench.told["project"]

    async def work(db: Database) -> str:
        async with db.transaction(project) as session:
            (row,) = there.database.query("select id from secret where deleted_at is null")
            keys = KeySource.of(there.settings)
            values = await reveal_secrets(session, project, [str(row[0])], keys, "production")
        owner = await resolve_api_key(db, bench.told["keys"]["member"])
        assert owner.role == "operator"
        return next(iter(values.values()))

    assert there.run(work) == bench.canary


def test_a30_the_chain_of_a_restored_backup_verifies_and_tells_of_it(bench: Bench) -> None:
    bench.back_up()
    there = bench.place("there")
    bench.restore(there)
    project = bench.told["project"]

    async def work(db: Database) -> Any:
        await Sealer.open(db, there.settings).seal_all()
        return await verify_project(db, project, Evidence.of(there.settings))

    report = there.run(work)
    assert (report.ok, report.unsealed) == (True, 0) and report.checkpoints >= 2, report
    rows = there.database.query(
        "select details from audit_event where action = 'installation.restore' limit 1"
    )
    assert rows[0][0]["keys"] == ["audit_signing.key", "secrets.keys"]


def test_a30_copies_outside_that_are_newer_than_the_backup_are_named(bench: Bench) -> None:
    bench.back_up()
    project = bench.told["project"]

    async def go_on(db: Database) -> None:
        async with db.transaction(project) as session:
            ref = ArtifactRef(project, "agent", "clerk")
            await move_label(session, ref, LabelMove("staging", 1, 3), SYSTEM)
        await Sealer.open(db, bench.source.settings).seal_all()

    bench.source.run(go_on)
    there = bench.place("there")
    audit = there.settings.audit.model_copy(update={"dir": bench.source.data_dir / "audit"})
    there.settings = there.settings.model_copy(update={"audit": audit})
    report = bench.restore(there)
    (words,) = [remark for remark in report.remarks if "newer than the backup" in remark]
    numbers = re.search(r"ends with checkpoint (\d+), the backup with (\d+)\.", words)
    assert numbers is not None and "accept-restore" in words, words
    assert int(numbers[1]) == int(numbers[2]) + 1
    last = OutsideCopy(bench.source.data_dir / "audit", project).last()
    assert last is not None and last.seq == int(numbers[1]), "the copy is left as it is"

    async def judge(db: Database) -> tuple[Any, Any]:
        evidence = Evidence.of(there.settings)
        first = await verify_project(db, project, evidence)
        sealer = Sealer.open(db, there.settings)
        await sealer.accept_restore(project, Author("person", "anna"), "the disk was lost")
        return first, await verify_project(db, project, evidence)

    first, then = there.run(judge)
    assert not first.ok and first.bad is not None, first
    assert then.ok, then


def test_s124_leases_and_sign_ins_of_the_old_machine_are_over(bench: Bench) -> None:
    bench.source.database.query(
        "update job set state = 'running', worker = 'old/1', "
        "lease_until = clock_timestamp() + interval '1 hour'"
    )
    bench.source.database.query(
        'insert into "user" (id, email) values '
        "('01a22c8a-29be-7556-aaab-26a24fa14c01', 'anna@example.org')"
    )
    bench.source.database.query(
        "insert into session (id, hash, user_id, expires_at) select "
        "'01a22c8a-29be-7556-aaab-26a24fa14c02', 'h', id, clock_timestamp() + interval '1 day' "
        'from "user"'
    )
    bench.back_up()
    there = bench.place("there")
    bench.restore(there)
    query = "select lease_until < clock_timestamp() from job"
    assert there.database.query(query) == [(True,)]
    assert there.database.query("select revoked_at is not null from session") == [(True,)]
    assert bench.source.database.query("select revoked_at is null from session") == [(True,)]


def test_a36_a_backup_shows_neither_secrets_nor_keys(bench: Bench) -> None:
    from instar.backup.archive import read_archive
    from instar.backup.protection import Protection, Unlock

    taken = bench.back_up()
    bench.back_up("open", Protection(none=True))
    keys = [
        bench.source.data_dir.joinpath(name).read_bytes().strip()
        for name in ("secrets.keys", "audit_signing.key", "api.key")
    ]
    sealed = (bench.folder / "backup").read_bytes()
    assert sealed.startswith(b"age-encryption.org/v1")
    for word in (b"desk.key", b"clerk", b"manifest.json", bench.canary.encode(), *keys):
        assert word not in sealed
    # Even where nothing is encrypted: no secret's value, no key. (The dump's text is compressed.)
    clear = (bench.folder / "open").read_bytes()
    assert not any(word in clear for word in (bench.canary.encode(), *keys))
    with read_archive(bench.folder / "open", Unlock()) as entries:
        names = [entry.name for entry in entries]
    assert not any("key" in name and name != "audit/keys.json" for name in names), names
    told = {key.name: key.fingerprint for key in taken.manifest.keys}
    assert set(told) >= {"secrets.keys", "audit_signing.key", "api.key"}
    assert told["secrets.keys"] == KeySource.of(bench.source.settings).read().active
    assert KeyFile(name="secrets.keys", fingerprint=told["secrets.keys"]) in taken.manifest.keys


def test_restore_asks_for_the_keys_by_fingerprint(bench: Bench) -> None:
    bench.back_up()
    there = bench.place("there")
    active = KeySource.of(bench.source.settings).read().active
    with pytest.raises(UserError, match=rf"secrets\.keys, fingerprint {active}") as caught:
        bench.restore(there, keys=None)
    assert "--keys DIR" in str(caught.value) and "--without-keys" in str(caught.value)
    with pytest.raises(UserError, match="has no file"):
        bench.restore(there, keys=bench.folder)
    other = bench.folder / "other"
    other.mkdir()
    KeySource(other / "secrets.keys").ensure()
    (other / "audit_signing.key").write_bytes(
        (bench.source.data_dir / "audit_signing.key").read_bytes()
    )
    with pytest.raises(UserError, match="does not hold the key of this backup"):
        bench.restore(there, keys=other)
    with pytest.raises(UserError, match="exclude each other"):
        bench.restore(there, keys=other, without_keys=True)
    assert not there.data_dir.exists(), "nothing was begun"


def test_restore_without_keys_says_what_will_not_work(bench: Bench) -> None:
    bench.back_up()
    there = bench.place("there")
    report = bench.restore(there, without_keys=True)
    words = " ".join(report.remarks)
    assert "enter them again: test/desk.key" in words and "vouches for the old" in words
    assert there.database.query("select deleted_at is null from secret") == [(False,)]
    assert "secret.abandon" in " ".join(actions(there)), actions(there)
    project = bench.told["project"]

    async def work(db: Database) -> Any:
        await Sealer.open(db, there.settings).seal_all()
        return await verify_project(db, project, Evidence.of(there.settings))

    report_after = there.run(work)
    assert report_after.ok and report_after.checkpoints >= 2, report_after


def test_restore_refuses_what_is_not_empty(bench: Bench) -> None:
    bench.back_up()
    there = bench.place("there")
    there.data_dir.mkdir()
    (there.data_dir / "notes.txt").write_text("mine")
    with pytest.raises(PrerequisiteError, match=r"is not empty: it holds other files \('notes"):
        bench.restore(there)
    (there.data_dir / "notes.txt").unlink()
    with psycopg.connect(there.database.owner_url, autocommit=True) as connection:
        connection.execute("create schema instar")
        with pytest.raises(PrerequisiteError, match="the database is not empty"):
            bench.restore(there)
        connection.execute("drop schema instar")
    bench.restore(there)
    with pytest.raises(PrerequisiteError, match="it holds an installation"):
        bench.restore(there)
    # Nor is a whole installation cleared because of a note that lies in it.
    (there.data_dir / "restoring.json").write_text("{}")
    with pytest.raises(PrerequisiteError, match="it holds an installation"):
        bench.restore(there)
    assert (there.data_dir / "secrets.keys").exists()


def test_a_dry_run_reads_all_of_it_and_writes_nothing(bench: Bench) -> None:
    taken = bench.back_up()
    there = bench.place("there")
    report = bench.restore(there, dry_run=True)
    assert (report.dry_run, report.hashes_equal, report.rows) == (True, None, taken.manifest.rows)
    assert not there.data_dir.exists()
    assert there.database.query("select to_regnamespace('instar') is null") == [(True,)]
