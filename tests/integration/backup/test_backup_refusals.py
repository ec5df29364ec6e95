"""Backups that cannot be taken, and files that must not be restored: told, and nothing is left."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from instar.backup.age import load_age
from instar.backup.archive import read_archive, write_archive
from instar.backup.programs import find_program, pipe_from
from instar.backup.protection import (
    Protection,
    Unlock,
    is_open_to_others,
    read_identities,
    read_passphrase,
)
from instar.backup.take import take_backup
from instar.store.migrate import head_revision
from instar.store.snapshot import open_snapshot
from instar_core.base import canonical_json
from instar_core.errors import InstarError, PrerequisiteError, StoreError, UserError

if TYPE_CHECKING:
    from tests.integration.backup.conftest import Bench

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
OPEN = Protection(none=True)


def test_a_login_that_row_level_security_stops_takes_no_empty_backup(bench: Bench) -> None:
    owner = bench.source.database.owner_url
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("drop role if exists keeper")
        connection.execute("create role keeper login password 'only-for-tests'")
        connection.execute("grant instar_owner, instar_definer to keeper")
    try:
        url = owner.replace("postgresql://postgres:", "postgresql://keeper:")
        password = bench.cluster.server.password
        keeper = url.replace(password, "only-for-tests")
        settings = bench.source.settings.model_copy(update={"database_url": keeper})
        with pytest.raises(PrerequisiteError, match="row-level security") as caught:
            take_backup(settings, bench.folder / "b", OPEN)
        assert 'alter role "keeper" bypassrls' in str(caught.value)
        assert list(bench.folder.glob("*b*")) == []
        bench.cluster.execute("alter role keeper bypassrls")
        # The rights of the owner and the sight of all rows suffice: no superuser is needed.
        report = take_backup(settings, bench.folder / "b", OPEN)
        assert report.manifest.rows > 2000
        there = bench.place("there")
        there.settings = there.settings.model_copy(
            update={"database_url": keeper.replace(bench.source.database.name, there.database.name)}
        )
        with pytest.raises(PrerequisiteError, match="only a superuser gives"):
            bench.restore(there, "b")
    finally:
        bench.cluster.execute("drop owned by keeper", bench.source.database.name)
        bench.cluster.execute("drop role keeper")


def test_a_backup_is_not_left_open_by_accident(bench: Bench) -> None:
    for protection, words in [
        (Protection(), "nothing was named"),
        (Protection(("age1x",), "a long passphrase"), "more than one"),
        (Protection(("age1nonsense",)), "'age1nonsense' is not an age recipient"),
        (Protection((str(bench.identity),)), "a secret key was named"),
    ]:
        with pytest.raises(UserError, match=words) as caught:
            bench.back_up("b", protection)
        assert str(bench.identity) not in str(caught.value)
    assert list(bench.folder.glob("*b")) == []
    bench.back_up("b", OPEN)
    (bench.folder / "link").symlink_to(bench.folder / "nowhere")
    for taken in ("b", "link"):
        with pytest.raises(UserError, match="replaces no file"):
            bench.back_up(taken, OPEN)
    with pytest.raises(PrerequisiteError, match="cannot be written"):
        bench.back_up("no/such/folder/b", OPEN)
    newer = bench.source.database
    newer.query("update alembic_version set version_num = '0001'")
    with pytest.raises(PrerequisiteError, match="revision '0001'"):
        bench.back_up("c", OPEN)


def test_passphrases_and_identities_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("short\n")
    with pytest.raises(UserError, match="has 5 characters"):
        read_passphrase(path)
    path.write_text("six random words are enough\r\n")
    assert read_passphrase(path) == "six random words are enough"
    for mode, is_open in ((0o644, True), (0o640, True), (0o600, False), (0o400, False)):
        path.chmod(mode)
        assert is_open_to_others(path) is is_open
    path.chmod(0o600)
    assert not is_open_to_others(tmp_path / "absent")
    identity = load_age().x25519.Identity.generate()
    path.write_text(f"# created: today\n# public key: {identity.to_public()}\n{identity}\n")
    assert read_identities(path) == (str(identity),)
    path.write_text("AGE-SECRET-KEY-1NONSENSE\n")
    with pytest.raises(UserError, match="no age identity") as caught:
        read_identities(path)
    assert "NONSENSE" not in str(caught.value)
    path.write_text("# nothing\n")
    with pytest.raises(UserError, match="holds no age identity"):
        read_identities(path)
    with pytest.raises(PrerequisiteError, match="cannot be read"):
        read_passphrase(tmp_path / "absent")


@pytest.mark.parametrize("kind", ["recipient", "passphrase", "none"])
def test_a_damaged_backup_is_not_restored(bench: Bench, kind: str) -> None:
    words = "six random words are enough"
    protection = {
        "recipient": Protection((str(bench.identity.to_public()),)),
        "passphrase": Protection(passphrase=words),
        "none": OPEN,
    }[kind]
    bench.back_up("whole", protection)
    whole = (bench.folder / "whole").read_bytes()
    there = bench.place("there")
    unlock = Unlock((str(bench.identity),), words)
    middle = whole.rindex(b"database.dump.000000") + 9000 if kind == "none" else len(whole) // 2
    damages = {
        "cut at the end": whole[: -2 * 10240],
        "cut in the middle": whole[: len(whole) // 2],
        "cut at the start": whole[:70],
        "changed": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "empty": b"",
    }
    for name, data in damages.items():
        (bench.folder / "bad").write_bytes(data)
        for dry_run in (True, False):
            with pytest.raises((UserError, StoreError)) as caught:
                bench.restore(there, "bad", unlock=unlock, dry_run=dry_run)
            assert "Traceback" not in str(caught.value), name
        if there.data_dir.exists():
            assert not (there.data_dir / "instar.json").exists(), name
    # What the tries left behind does not stop the whole one.
    assert bench.restore(there, "whole", unlock=unlock).hashes_equal


def test_what_opens_another_backup_does_not_open_this_one(bench: Bench) -> None:
    bench.back_up("b")
    bench.back_up("p", Protection(passphrase="six random words are enough"))
    there = bench.place("there")
    other = load_age().x25519.Identity.generate()
    cases = [
        ("b", Unlock(), "an age identity opens it"),
        ("b", Unlock((str(other),)), "is not encrypted to this identity"),
        ("p", Unlock((str(bench.identity),)), "is encrypted with a passphrase"),
        ("p", Unlock(passphrase="six other words are enough"), "does not open"),
        ("nothing", Unlock(), "cannot be read"),
    ]
    for name, unlock, words in cases:
        with pytest.raises(UserError, match=words):
            bench.restore(there, name, unlock=unlock)
    (bench.folder / "photo").write_bytes(b"\x89PNG" + bytes(1000))
    with pytest.raises(UserError, match="is not a backup of Instar"):
        bench.restore(there, "photo")
    assert not there.data_dir.exists()


def _rewritten(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Copies an open backup with another manifest."""
    with (
        read_archive(source, Unlock()) as entries,
        tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as out,
    ):
        for entry in entries:
            data = entry.content.read()
            if entry.name == "manifest.json":
                document = json.loads(data)
                change(document)
                data = json.dumps(document).encode()
            info = tarfile.TarInfo(entry.name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))


def _forged(bench: Bench, change: Callable[[dict[str, Any]], None]) -> InstarError:
    """What a restore says to a backup whose manifest was changed."""
    (bench.folder / "forged").unlink(missing_ok=True)
    _rewritten(bench.folder / "open", bench.folder / "forged", change)
    there = bench.place("there")
    with pytest.raises(InstarError) as caught:
        bench.restore(there, "forged")
    assert not (there.data_dir / "instar.json").exists()
    return caught.value


def test_every_count_hash_and_revision_is_held_against_the_manifest(bench: Bench) -> None:
    bench.back_up("open", OPEN)

    def table(wanted: str, **values: Any) -> Callable[[dict[str, Any]], None]:
        def change(document: dict[str, Any]) -> None:
            (found,) = [one for one in document["tables"] if one["name"] == wanted]
            found.update(values)

        return change

    cases: list[tuple[Callable[[dict[str, Any]], None], str]] = [
        (table("effect", rows=563), "'effect' has 564 rows instead of 563"),
        (table("message", sha256="0" * 64), "a row of the table 'message' is other"),
        (table("price", name="prize"), "the table 'price' is new"),
        (lambda d: d.update(schema_revision="0999"), "'0999' .* newer than this version"),
        (lambda d: d.update(format=99), "format 99; this version of Instar restores format 1"),
        (lambda d: d.pop("tables"), "manifest is damaged: tables"),
        (lambda d: d["files"][0].update(sha256="0" * 64), "is other than it was"),
        (lambda d: d["files"].pop(), "is not in the manifest"),
        (lambda d: d["files"][0].update(path="audit/../../x"), "is not in the manifest"),
        (lambda d: d.update(server=99), "comes from PostgreSQL 99"),
    ]
    for change, words in cases:
        error = _forged(bench, change)
        assert re.search(words, str(error)), (words, str(error))


def test_a_backup_of_an_older_schema_is_upgraded_by_its_restore(bench: Bench) -> None:
    url = bench.released().owner_url
    program = find_program("pg_dump", 18)
    with write_archive(bench.folder / "old", OPEN) as archive, open_snapshot(url) as snapshot:
        manifest = {
            "id": "01a22c8a-29be-7556-aaab-26a24fa14c09",
            "instar": "0.1.0",
            "schema_revision": snapshot.revision(),
            "installation": snapshot.installation(),
            "taken_at": snapshot.moment(),
            "database": "external",
            "server": 18,
            "dumper": program.major,
            "tables": [table.model_dump() for table in snapshot.tables()],
        }
        assert manifest["schema_revision"] == "0001" and snapshot.secrets() == []
        archive.add("manifest.json", json.dumps(manifest).encode())
        words = ["--format=custom", "--schema=instar", f"--snapshot={snapshot.export()}"]
        with pipe_from(program, url, words) as dump:
            total, digest, pieces = archive.add_pieces("database.dump", dump)
        seal = {"dump_bytes": total, "dump_sha256": digest, "pieces": pieces}
        archive.add("seal.json", canonical_json(seal))
    there = bench.place("there")
    report = bench.restore(there, "old", keys=None)
    assert (report.revision_before, report.revision_after) == ("0001", head_revision())
    assert report.hashes_equal
    assert there.database.query("select count(*) from effect") == [(564,)]
