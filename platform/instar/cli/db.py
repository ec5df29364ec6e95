"""Commands on the database's schema: bring it up to this version, or see whether it is."""

from __future__ import annotations

import typer

from instar.cli.output import Json, emit

__all__ = ["app"]

app = typer.Typer(help="The database's schema.", no_args_is_help=True)


@app.command()
def upgrade(json: Json = False) -> None:
    """Bring the schema up to this version; safe to repeat, and to run twice at once."""
    import os

    from instar.backup.place import layout_of, owner_database
    from instar.settings import load_settings
    from instar.store.migrate import upgrade as run

    settings = load_settings()
    folder = layout_of(settings).data_dir
    with owner_database(settings) as url:
        done = run(
            url,
            app_password=os.environ.get("INSTAR_APP_PASSWORD"),
            # A one-shot job beside a database of one's own has no data directory to mark.
            data_dir=folder if folder.exists() else None,
        )
    data = {"before": done.before, "after": done.after, "changed": done.before != done.after}
    words = (
        f"schema revision {done.after} (was {done.before or 'empty'})"
        if data["changed"]
        else f"schema revision {done.after}: nothing to do"
    )
    emit(data, json, words)


@app.command()
def check(json: Json = False) -> None:
    """See whether the schema is this version's; exit code 1 with the reason when it is not."""
    from instar.backup.place import owner_database
    from instar.settings import load_settings
    from instar.store.migrate import check as run
    from instar.store.migrate import head_revision

    settings = load_settings()
    with owner_database(settings) as url:
        found = run(url)
    data = {"ready": found.ready, "reason": found.reason, "needs": head_revision()}
    words = f"ready: schema revision {head_revision()}"
    emit(data, json, words if found.ready else f"not ready: {found.reason}")
    if not found.ready:
        raise typer.Exit(1)
