"""Fixtures of backup and restore: an installation with real content, and empty places for it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from instar.audit.keys import ensure_signing_key
from instar.audit.writer import Sealer
from instar.backup.age import load_age
from instar.backup.programs import find_program, pipe_to
from instar.backup.protection import Protection, Unlock
from instar.backup.restore import RestoreOptions, RestoreReport, restore_backup
from instar.backup.take import BackupReport, take_backup
from instar.settings import Settings
from instar.store.audit import SYSTEM
from instar.store.keyring import KeySource
from instar.store.migrate import upgrade
from instar.store.secrets import NewSecret, put_secret
from instar.store.session import Database
from instar.store.testing import APP_PASSWORD, MigratedDatabase, PostgresCluster
from instar.store.urls import app_url

T = TypeVar("T")
DATA = Path(__file__).parents[2] / "data" / "released_0001"


@dataclass
class Place:
    """A data directory beside a database of its own."""

    database: MigratedDatabase
    settings: Settings

    @property
    def data_dir(self) -> Path:
        """The data directory."""
        return self.settings.data_dir

    def run(self, work: Callable[[Database], Awaitable[T]]) -> T:
        """Runs ``await work(db)`` as the application."""
        return self.database.run(work)


@dataclass
class Bench:
    """An installation to be backed up, and whatever places it is restored into."""

    cluster: PostgresCluster
    folder: Path
    source: Place
    told: dict[str, Any]
    identity: Any = field(default_factory=load_age().x25519.Identity.generate)
    made: list[str] = field(default_factory=list)
    canary: str = "canary-8c1f5d-do-not-show"

    def place(self, name: str, folder: Path | None = None) -> Place:
        """An empty database and a data directory that does not exist."""
        database = self.cluster.create()
        self.made.append(database)
        owner = self.cluster.owner_url(database)
        data_dir = (folder or self.folder) / name
        return _place(self.cluster, database, owner, data_dir, self.told["project"])

    def released(self) -> MigratedDatabase:
        """One more database, as the first release left it."""
        name = _load(self.cluster)
        self.made.append(name)
        owner = self.cluster.owner_url(name)
        application = app_url(owner, APP_PASSWORD)
        return MigratedDatabase(name, owner, application, self.told["project"], self.cluster)

    def back_up(self, name: str = "backup", protection: Protection | None = None) -> BackupReport:
        """A backup of the installation, encrypted to ``identity`` unless said otherwise."""
        chosen = protection or Protection((str(self.identity.to_public()),))
        return take_backup(self.source.settings, self.folder / name, chosen)

    def restore(self, place: Place, name: str = "backup", **changes: Any) -> RestoreReport:
        """Restores with the source's keys, unless said otherwise."""
        given: dict[str, Any] = {
            "unlock": Unlock((str(self.identity),)),
            "keys": None if changes.get("without_keys") else self.source.data_dir,
        }
        options = RestoreOptions(**(given | changes))
        return restore_backup(place.settings, self.folder / name, options)


def _place(cluster: PostgresCluster, name: str, owner: str, folder: Path, project: str) -> Place:
    application = app_url(owner, APP_PASSWORD)
    settings = Settings(data_dir=folder).model_copy(
        update={"database_url": owner, "app_database_url": application}
    )
    return Place(MigratedDatabase(name, owner, application, project, cluster), settings)


def _load(cluster: PostgresCluster) -> str:
    """A new database that holds the dump of revision 0001."""
    name = cluster.create()
    program = find_program("pg_restore", 18)
    with pipe_to(program, cluster.owner_url(name), ["--exit-on-error"]) as dump:
        dump.write((DATA / "0001.dump").read_bytes())
    return name


@pytest.fixture
def bench(postgres_cluster: PostgresCluster, tmp_path: Path) -> Iterator[Bench]:
    """The first release's data, upgraded, with a secret, keys and a sealed audit chain."""
    told = json.loads((DATA / "0001.json").read_text(encoding="utf-8"))
    name = _load(postgres_cluster)
    owner = postgres_cluster.owner_url(name)
    source = _place(postgres_cluster, name, owner, tmp_path / "source", told["project"])
    source.data_dir.mkdir()
    upgrade(owner, app_password=APP_PASSWORD, data_dir=source.data_dir)
    KeySource.of(source.settings).ensure()
    ensure_signing_key(source.settings)
    (source.data_dir / "api.key").write_text(told["keys"]["local"] + "\n")

    async def add(db: Database) -> None:
        async with db.transaction(told["project"]) as session:
            keys = KeySource.of(source.settings)
            new = NewSecret("desk.key", Bench.canary)
            await put_secret(session, told["project"], new, keys, SYSTEM)
        await Sealer.open(db, source.settings).seal_all()

    source.run(add)
    bench = Bench(postgres_cluster, tmp_path, source, told)
    yield bench
    for database in (name, *bench.made):
        postgres_cluster.drop(database)
