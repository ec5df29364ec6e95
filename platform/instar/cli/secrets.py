"""``instar secret``: set, list, delete; and the keys that secrets are encrypted with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instar.cli.client import Client, path_of
from instar.cli.output import Json, emit, table
from instar_core.errors import NotFoundError, UserError

if TYPE_CHECKING:
    from instar.store.keyring import KeySource
    from instar.store.secret_rotation import Rotation

__all__ = ["app"]

app = typer.Typer(
    help="Secrets: kept encrypted, named by id, never shown again.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="Name of the secret, such as desk.API_KEY.")]


@app.command(name="set")
def set_(
    name: Name,
    use: Annotated[
        str, typer.Option(help="'production', or 'rollouts' for test bindings.")
    ] = "production",
    json: Json = False,
) -> None:
    """Set a secret; the value is asked for, or read from standard input.

    There is no option for the value: command lines are seen by everybody on the machine.
    """
    value = _read_value(name)
    client = Client()
    match = None
    try:
        # Whoever sets it here means the secret as it is now.
        match = f'"{client.get(path_of("secrets", name))["revision"]}"'
    except NotFoundError:
        pass
    body = {"value": value, "use": use}
    found = client.put(path_of("secrets", name), body, match=match)
    words = f"secret {name} is set (revision {found['revision']}): ${{secret:{found['id']}}}"
    emit(found, json, words)


def _read_value(name: str) -> str:
    if sys.stdin.isatty():
        import getpass

        value = getpass.getpass(f"Value of {name} (not shown): ")
    else:
        try:
            value = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError:
            raise UserError(
                "the value on standard input is no UTF-8.", remedy="Encode bytes as base64."
            ) from None
        # `echo value |` and files end with a line break that nobody means.
        value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise UserError("the value is empty.", remedy=f"Try `instar secret set {name} < FILE`.")
    return value


@app.command(name="list")
def list_(json: Json = False) -> None:
    """List the project's secrets, without their values."""
    rows = list(Client().pages(path_of("secrets")))
    columns = ("name", "use", "revision", "updated_at", "key_id", "id")
    emit(rows, json, table(rows, columns))


@app.command()
def delete(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Also while a tool server uses it.")
    ] = False,
    json: Json = False,
) -> None:
    """Delete a secret and wipe its value."""
    Client().delete(path_of("secrets", name), force="true" if force else None)
    emit({"deleted": name}, json, f"secret {name} is deleted")


@app.command()
def rotate(
    prune: Annotated[
        bool, typer.Option("--prune", help="Drop the old keys once nothing needs them.")
    ] = False,
    json: Json = False,
) -> None:
    """Encrypt every secret of every project with a new key; safe to break off and repeat."""
    import asyncio

    done = asyncio.run(_rotate(prune))
    words = [
        f"{done.moved} secret{'' if done.moved == 1 else 's'} moved to the key {done.key_id}"
        + (" (finished what had been broken off)" if done.resumed else "")
    ]
    if prune:
        words.append(f"dropped: {', '.join(done.pruned) or 'no key'}")
    else:
        words.append("The old keys stay until `instar secret rotate --prune`.")
    data: dict[str, Any] = {**done._asdict(), "pruned": list(done.pruned)}
    emit(data, json, "\n".join(words))


async def _rotate(prune: bool) -> Rotation:
    from instar.backup.place import layout_of, owner_database
    from instar.settings import load_settings
    from instar.store.audit import Author
    from instar.store.keyring import KeySource
    from instar.store.secret_rotation import rotate_keys
    from instar.store.session import Database
    from instar.store.urls import app_url

    settings = load_settings()
    with owner_database(settings) as owner_url:
        url = settings.app_database_url
        if not url:
            url = app_url(owner_url, layout_of(settings).read_secrets().app_password)
        db = Database(url, pool_size=1)
        try:
            by = Author("system", "instar secret rotate")
            return await rotate_keys(db, KeySource.of(settings), by, prune=prune)
        finally:
            await db.close()


@app.command()
def key(json: Json = False) -> None:
    """Show where the keys are and their fingerprints, never the keys."""
    from instar.settings import load_settings
    from instar.store.keyring import KeySource

    source = KeySource.of(load_settings())
    rows = _fingerprints(source)
    words = f"keys in {source.described}\n" + table(rows, ("key_id", "active", "created_at"))
    emit({"where": source.described, "keys": rows}, json, words)


def _fingerprints(source: KeySource) -> list[dict[str, Any]]:
    ring = source.read()
    return [
        {
            "key_id": key_id,
            "active": key_id == ring.active,
            "created_at": ring.created.get(key_id) or None,
        }
        for key_id in ring.keys
    ]
