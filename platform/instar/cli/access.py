"""``instar user``, ``instar key`` and ``instar project``: who may come in, and what they may do."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from instar.cli.client import Client, path_of
from instar.cli.output import Json, emit, table
from instar_core.errors import NotFoundError, UserError

__all__ = ["keys", "projects", "users"]

users = typer.Typer(help="People of the project, and their roles.", no_args_is_help=True)
keys = typer.Typer(help="API keys: shown once, narrowed, ended.", no_args_is_help=True)
projects = typer.Typer(help="Projects: create, list, promotion rule.", no_args_is_help=True)

_Email = Annotated[str, typer.Argument(help="The person's e-mail address.")]
_Role = Annotated[str, typer.Option(help="viewer, operator, approver or admin.")]
_USER_COLUMNS = ("email", "name", "role", "instance", "disabled", "id")
_KEY_COLUMNS = ("name", "prefix", "role", "scopes", "agent", "expires_at", "revoked_at", "id")


@users.command()
def add(
    email: _Email,
    role: _Role = "viewer",
    name: Annotated[str, typer.Option(help="The person's name.")] = "",
    admin: Annotated[
        bool, typer.Option("--admin", help="Role admin, and may make projects and users.")
    ] = False,
    no_password: Annotated[
        bool,
        typer.Option("--no-password", help="Signs in elsewhere, or has a password already."),
    ] = False,
    json: Json = False,
) -> None:
    """Add a person to the project; the password is asked for, or read from standard input.

    There is no option for the password: command lines are seen by everybody on the machine.
    """
    client = Client()
    body: dict[str, Any] = {"email": email, "name": name, "role": "admin" if admin else role}
    if not no_password:
        body["password"] = _read_password(email)
    if admin:
        body["instance"] = True
    found = client.post(path_of("users"), body)
    emit(found, json, f"{found['email']} is {found['role']} of the project")


def _read_password(email: str) -> str:
    """A password from the terminal, twice, or the first line of standard input."""
    if sys.stdin.isatty():
        import getpass

        password = getpass.getpass(f"Password of {email} (not shown): ")
        if getpass.getpass("The same again: ") != password:
            raise UserError("the two were not the same; nothing was changed.")
        return password
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UserError(
            "there is no password on standard input.",
            remedy="Pipe it in, run this at a terminal, or say --no-password.",
        )
    return password


def _find(client: Client, email: str) -> dict[str, Any]:
    wanted = email.strip().lower()
    for one in client.pages(path_of("users")):
        if one["email"].lower() == wanted:
            found: dict[str, Any] = one
            return found
    raise NotFoundError(
        f"nobody with the address {email!r} has a role in this project.",
        remedy="See `instar user list`.",
    )


@users.command(name="list")
def list_users(json: Json = False) -> None:
    """List the people with a role in the project."""
    rows = list(Client().pages(path_of("users")))
    emit(rows, json, table(rows, _USER_COLUMNS))


@users.command()
def role(
    email: _Email,
    role: Annotated[str, typer.Argument(help="viewer, operator, approver or admin.")],
    json: Json = False,
) -> None:
    """Change what a person may do in the project."""
    client = Client()
    user = _find(client, email)
    path = path_of("users", user["id"], "role")
    found = client.put(path, {"role": role}, match=f'"{user["role"]}"')
    emit(found, json, f"{found['email']} is {found['role']} of the project")


@users.command()
def remove(email: _Email, json: Json = False) -> None:
    """Take a person out of the project; roles elsewhere stay."""
    client = Client()
    user = _find(client, email)
    client.delete(path_of("users", user["id"]))
    emit(user, json, f"{user['email']} has no role in this project any more")


@users.command()
def disable(email: _Email, json: Json = False) -> None:
    """Shut a person out of every project and end all sessions."""
    client = Client()
    found = client.post(path_of("users", _find(client, email)["id"], "disable"))
    emit(found, json, f"{found['email']} cannot sign in any more")


@users.command()
def password(email: _Email, json: Json = False) -> None:
    """Give a person a new password and end all of that person's sessions."""
    client = Client()
    user = _find(client, email)
    body = {"password": _read_password(email)}
    client.post(path_of("users", user["id"], "password"), body)
    emit(user, json, f"{user['email']} has a new password; every session has ended")


@keys.command(name="create")
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for, for people to read.")],
    role: _Role = "operator",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="Area such as runs, or runs:read; may be repeated. Default: all."),
    ] = None,
    days: Annotated[float, typer.Option(min=0, help="Days until it ends; 0 for never.")] = 0.0,
    agent: Annotated[str, typer.Option(help="The agent that will hold it; never approves.")] = "",
    json: Json = False,
) -> None:
    """Make a key; its secret is printed this once."""
    body: dict[str, Any] = {"name": name, "role": role, "scopes": scope or [], "agent": agent}
    if days:
        body["expires_at"] = (datetime.now(UTC) + timedelta(days=days)).isoformat()
    found = Client().post(path_of("api-keys"), body)
    emit(found, json, f"{found['key']}\nid {found['id']}; the key is shown this once")


@keys.command(name="list")
def list_keys(json: Json = False) -> None:
    """List the project's keys, revoked ones too; never their secrets."""
    rows = list(Client().pages(path_of("api-keys")))
    shown = [{**row, "scopes": ", ".join(row["scopes"]) or "all"} for row in rows]
    emit(rows, json, table(shown, _KEY_COLUMNS))


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, from `instar key list`.")],
    json: Json = False,
) -> None:
    """Make a key useless at once."""
    Client().delete(path_of("api-keys", key_id))
    emit({"id": key_id, "revoked": True}, json, f"the key {key_id} opens nothing any more")


@projects.command(name="create")
def create_project(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits, '.', '_' and '-'.")],
    json: Json = False,
) -> None:
    """Make a project; its first key is printed this once."""
    found = Client().post(path_of("projects"), {"name": name})
    words = f"project {found['name']} is made"
    if found.get("key"):
        words += f"; its first key, shown this once (INSTAR_API_KEY uses it): {found['key']}"
    emit(found, json, words)


@projects.command(name="list")
def list_projects(json: Json = False) -> None:
    """List the projects in which this credential may work."""
    rows = Client().get(path_of("projects"))
    emit(rows, json, table(rows, ("name", "role", "id")))


@projects.command()
def promotion(
    rule: Annotated[str, typer.Argument(help="ask or auto; shown when left out.")] = "",
    json: Json = False,
) -> None:
    """Show or set who promotes a real gain: a person (ask), or the night itself (auto)."""
    client, path = Client(), path_of("project")
    if rule:
        found = client.put(path, {"promotion": rule}, match=client.etag(path))
    else:
        found = client.get(path)
    who = "a person decides" if found["promotion"] == "ask" else "an accepted gain is promoted"
    emit(found, json, f"{found['name']}: {found['promotion']} ({who})")
