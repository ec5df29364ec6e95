"""The part of the set-up that concerns secrets: the keyring, and values of older registrations.

Safe to run again after a crash at any point: what is a reference already is left as it is.
"""

from __future__ import annotations

import sys

from instar.runtime.tools.config import ToolServerConfig
from instar.runtime.tools.secrets import settle_secrets
from instar.settings import Settings
from instar.store import system
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.keyring import KeySource
from instar.store.secret_rotation import abandon_key, key_usage
from instar.store.secrets import check_keys
from instar.store.servers import list_stored_servers
from instar.store.session import Database
from instar_core.errors import PrerequisiteError, UserError

__all__ = ["install_secrets"]


async def install_secrets(db: Database, settings: Settings, by: Author) -> int:
    """Makes the first key, checks that the keyring opens what is stored, and moves old values.

    Args:
        db: The service's database, migrated.
        settings: Where the keyring is.
        by: Who is named in the audit.

    Returns:
        How many values of older registrations were moved into the store.

    Raises:
        PrerequisiteError: If stored secrets cannot be opened: no new key is made in place of one
            that is missing.
    """
    keys = KeySource.of(settings)
    lost = settings.secrets.abandon
    used = await key_usage(db)
    if lost and lost in used:
        gone = await abandon_key(db, keys, lost)
        print(f"deleted {gone} secret(s) that only the lost key {lost} opened", flush=True)
        used = await key_usage(db)
    if used and not keys.environment and not keys.path.exists():
        raise keys.missing(min(used))
    keys.ensure()
    verdict = await check_keys(db, keys)
    if verdict != "ok":
        raise PrerequisiteError(f"stored secrets cannot be used: {verdict}")
    async with db.system() as session:
        projects = await system.list_projects(session)
    return sum([await _move_values(db, project_id, keys, by) for project_id in projects])


async def _move_values(db: Database, project_id: str, keys: KeySource, by: Author) -> int:
    """Moves the plain values of one project's registrations, those out of use included."""
    moved = 0
    async with db.transaction(project_id) as session:
        for row in await list_stored_servers(session, project_id):
            config = ToolServerConfig.model_validate(row.config)
            if row.deleted_at is not None:
                # Nobody starts it again: its values need not be kept, encrypted or not.
                bare = config.model_copy(update={"env": {}, "args": (), "test_bindings": {}})
                row.config = bare.model_dump(mode="json")
                continue
            try:
                async with session.begin_nested():
                    settled = await settle_secrets(session, project_id, config, keys, by, config)
            except UserError as error:
                # One that could not be registered any more still has to be put right by a person.
                print(f"tool server {row.name!r} is left as it is: {error}", file=sys.stderr)
                continue
            if not settled.moved:
                continue
            row.config = settled.config.model_dump(mode="json")
            moved += len(settled.moved)
            names = [one.name for one in settled.moved]
            entry = AuditEntry(
                action="server.move_secrets", subject=row.name, details={"names": list(names)}
            )
            await append_audit(session, project_id, entry, by)
    return moved
