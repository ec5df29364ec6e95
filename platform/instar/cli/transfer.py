"""``instar artifact export|import`` and skill folders in and out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from instar.cli.client import Client, path_of
from instar.cli.output import Json, emit, say
from instar_core.errors import UserError

__all__ = ["register"]

_ARCHIVE = "application/gzip"
_ENDINGS = (".tar.gz", ".tgz")
_PAGE = 200
_DRY = Annotated[bool, typer.Option("--dry-run", help="Report what it would do; write nothing.")]


def register(app: typer.Typer, tasks: typer.Typer) -> None:
    """Adds the commands to ``instar artifact`` and ``instar tasks``."""
    tasks.command(name="export")(export_tasks)
    app.command(name="export")(export)
    app.command(name="import")(import_)
    app.command(name="import-skill")(import_skill)
    app.command(name="export-skill")(export_skill)
    app.command(name="import-agent")(import_agent)


def export(
    path: Annotated[Path, typer.Argument(help="New folder, or a new file NAME.tar.gz.")],
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="Rollouts too, secrets masked.")
    ] = False,
    redact: Annotated[
        bool, typer.Option("--redact", help="Mask secrets in contents instead of refusing.")
    ] = False,
    with_sealed: Annotated[
        bool,
        typer.Option("--with-sealed", help="Sealed tasks too; on the server's machine alone."),
    ] = False,
    json: Json = False,
) -> None:
    """Export the project: skills as folders, tasks as JSONL, one manifest with every hash."""
    from instar_skills.archives import pack_tar, read_archive
    from instar_skills.disk import write_folder

    _refuse_existing(path)
    client = Client()
    data = client.download(path_of("export"), {"trajectories": trajectories, "redact": redact})
    files: Mapping[str, bytes] = read_archive(data)
    if with_sealed:
        files = _add_sealed(files, str(client.get(path_of("project"))["id"]))
        data = pack_tar(files)
    if path.name.endswith(_ENDINGS):
        _write_file(path, data)
    else:
        write_folder(path, files)
    found = _summary(files)
    sealed = found["sealed"]
    left = "" if sealed["included"] or not sealed["tasks"] else f"; {sealed['tasks']} sealed tasks"
    words = (
        f"{path}: {found['artifacts']} artifacts, {found['versions']} versions, "
        f"{found['files']} files{left}{' left out' if left else ''}"
    )
    emit({"path": str(path), **found}, json, words)


def _summary(files: Mapping[str, bytes]) -> dict[str, Any]:
    """What an export holds, counted, after every hash was checked once more."""
    from instar.registry.transfer.package import open_package

    package = open_package(files)
    manifest = package.manifest
    return {
        "artifacts": len(manifest.artifacts),
        "versions": len(package.versions),
        "labels": sum(len(one.labels) for one in manifest.artifacts),
        "rollouts": manifest.rollouts,
        "files": len(files),
        "bytes": sum(map(len, files.values())),
        "sealed": manifest.sealed.model_dump(),
    }


def _add_sealed(files: Mapping[str, bytes], project_id: str) -> dict[str, bytes]:
    """The export with sealed contents, read with the owner's login of this machine's database."""
    import asyncio

    from instar.backup.place import owner_database
    from instar.registry.transfer.sealed import add_sealed
    from instar.settings import load_settings
    from instar.store.audit import Author
    from instar.store.sealed_export import SealedContent, read_sealed_contents
    from instar.store.session import Database

    async def read(url: str) -> list[SealedContent]:
        db = Database(url)
        try:
            async with db.transaction(project_id) as session:
                by = Author("system", "database owner on the server's machine")
                return await read_sealed_contents(session, project_id, by)
        finally:
            await db.close()

    with owner_database(load_settings()) as url:
        return add_sealed(files, asyncio.run(read(url)))


def import_(
    path: Annotated[Path, typer.Argument(help="Folder or file that `export` wrote.")],
    dry_run: _DRY = False,
    prefix: Annotated[str, typer.Option(help="Put this before every name.")] = "",
    json: Json = False,
) -> None:
    """Import an export into the project; all of it is checked first, then written at once."""
    from instar_skills.archives import pack_tar

    # Trajectories are for people and trainers: no import takes them, so they need not travel.
    files = {name: data for name, data in _read(path).items() if not name.startswith("rollouts/")}
    _send(pack_tar(files), dry_run, prefix, json)


def _send(data: bytes, dry_run: bool, prefix: str, json: bool) -> None:
    found = Client().upload(
        path_of("import"), data, _ARCHIVE, dry_run=str(dry_run).lower(), prefix=prefix or None
    )
    emit(found, json, _import_words(found))
    if found["conflicts"]:
        raise typer.Exit(2)


def _import_words(found: Mapping[str, Any]) -> str:
    would = "would be " if found["dry_run"] else ""
    lines = [
        f"{found['artifacts']} artifacts of {found['project']}: {found['created']} {would}created, "
        f"{found['extended']} {would}extended, {found['kept']} kept as they are",
        f"{found['versions']} versions, {found['labels']} labels, {found['sealed']} sealed tasks "
        f"{would}written",
    ]
    lines += [f"conflict: {words}" for words in found["conflicts"]]
    lines += [f"note: {words}" for words in found["notes"]]
    return "\n".join(lines)


def import_skill(
    path: Annotated[Path, typer.Argument(help="Skill folder, or a zip or tar of one.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse what a strict reader would refuse.")
    ] = False,
    name: Annotated[str, typer.Option(help="Name here; the skill's own by default.")] = "",
    dry_run: _DRY = False,
    json: Json = False,
) -> None:
    """Import a skill folder byte for byte, with a report on its format."""
    from instar_skills.check import check_skill, folder_name
    from instar_skills.content import encode_files

    files, folder = _skill_files(path)
    report = check_skill(files, folder=folder, strict=strict)
    called = name or folder_name(files, folder)
    found: dict[str, Any] = {"name": called, "dry_run": dry_run, **report.model_dump(mode="json")}
    if not dry_run:
        body = {"content": {"files": encode_files(files)}, "reason": f"imported from {folder!r}"}
        saved = Client().post(path_of("artifacts", "skill", called, "versions"), body)
        found["version"] = saved["number"]
    lines = [f"skill {called}: {report.files} files, {report.bytes} bytes"]
    lines += [f"note: {words}" for words in report.problems]
    lines += [f"could be run: {script}" for script in report.scripts]
    emit(found, json, "\n".join(lines))


def _skill_files(path: Path) -> tuple[dict[str, bytes], str]:
    """The files of a skill and its folder's name; one folder around them all is looked into."""
    files = _read(path)
    tops = {name.partition("/")[0] for name in files}
    if "SKILL.md" not in files and len(tops) == 1 and all("/" in name for name in files):
        top = tops.pop()
        return {name.removeprefix(f"{top}/"): data for name, data in files.items()}, top
    folder = path.resolve().name
    for ending in (".zip", ".tar", *_ENDINGS):
        folder = folder.removesuffix(ending)
    return files, folder


def export_skill(
    name: Annotated[str, typer.Argument(help="Name of the skill.")],
    folder: Annotated[Path, typer.Argument(help="Where its folder is put.")] = Path(),
    version: Annotated[str, typer.Option(help="Version number or label.")] = "latest",
    strict: Annotated[
        bool, typer.Option("--strict", help="A copy that every reader takes.")
    ] = False,
    stamp: Annotated[
        bool, typer.Option("--stamp", help="Add instar.version and instar.sha256 to metadata.")
    ] = False,
    json: Json = False,
) -> None:
    """Export a skill as a folder: the bytes that were imported, unless asked for otherwise."""
    from instar_skills.check import check_skill, folder_name, strict_copy
    from instar_skills.content import decode_files
    from instar_skills.disk import write_folder

    found = Client().get(path_of("artifacts", "skill", name, "versions", version))
    files = decode_files(found["content"]["files"])
    if strict or stamp:
        marks = {"instar.version": str(found["number"]), "instar.sha256": found["digest"]}
        files = strict_copy(files, name, marks if stamp else None)
    place = folder / folder_name(files, name)
    write_folder(place, files)
    report = check_skill(files, folder=place.name)
    data = {"path": str(place), "version": found["number"], **report.model_dump(mode="json")}
    lines = [f"{place}: {report.files} files, {report.bytes} bytes"]
    if report.problems:
        lines += [f"note: {words}" for words in report.problems]
        lines.append("a strict reader refuses it; --strict writes a copy that it takes")
    emit(data, json, "\n".join(lines))


def import_agent(
    file: Annotated[Path, typer.Argument(help="Agent file (.af, JSON) of a retired server.")],
    dry_run: _DRY = False,
    prefix: Annotated[str, typer.Option(help="Put this before every name.")] = "",
    json: Json = False,
) -> None:
    """Import an agent file: blocks, tools and messages; tools land unapproved and never run."""
    from instar.registry.transfer.agent_file import convert_agent_file
    from instar_skills.archives import pack_tar

    converted = convert_agent_file(_read_bytes(file), file.name)
    for words in converted.report:
        say(words)
    _send(pack_tar(converted.files), dry_run, prefix, json)


def export_tasks(
    name: Annotated[str, typer.Argument(help="Name of the task set.")],
    file: Annotated[Path, typer.Argument(help="New JSONL file.")],
    version: Annotated[str, typer.Option(help="Version number or label.")] = "latest",
    json: Json = False,
) -> None:
    """Export train and validation tasks as JSONL; what is sealed has no way out through the API."""
    from instar_core.base import canonical_json

    _refuse_existing(file)
    client = Client()
    found = client.get(path_of("task-sets", name), version=version)
    # One version throughout, whatever `latest` comes to mean meanwhile.
    number = str(found["version"])
    shown = client.get(path_of("artifacts", "task_set", name, "versions", number))["content"]
    header = {"name": name, "bindings": shown.get("bindings", {})}
    lines: list[bytes] = [canonical_json({"task_set": header})]
    for split in ("train", "validation"):
        offset = 0
        while page := client.get(
            path_of("task-sets", name, "tasks"),
            version=number,
            split=split,
            limit=_PAGE,
            offset=offset,
        ):
            lines += map(canonical_json, page)
            offset += len(page)
    _write_file(file, b"".join(line + b"\n" for line in lines))
    sealed = found["counts"].get("sealed", 0)
    data = {"path": str(file), "version": found["version"], "tasks": len(lines) - 1}
    words = f"{file}: {len(lines) - 1} tasks of {name} version {number}"
    emit({**data, "sealed_left_out": sealed}, json, f"{words}; {sealed} sealed ones left out")


def _read(path: Path) -> dict[str, bytes]:
    from instar_skills.archives import read_archive
    from instar_skills.disk import read_folder

    if path.is_dir():
        left_out: list[str] = []
        files = read_folder(path, left_out=left_out)
        if left_out:
            say(f"left out: {', '.join(left_out)}")
        return files
    return read_archive(_read_bytes(path))


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}.") from error


def _refuse_existing(path: Path) -> None:
    taken = path.is_symlink() or path.is_file() or (path.is_dir() and any(path.iterdir()))
    if taken or (path.is_dir() and path.name.endswith(_ENDINGS)):
        raise UserError(
            f"{str(path)!r} exists already; nothing was exported.", remedy="Name a new one."
        )


def _write_file(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, for its owner alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as target:
            target.write(data)
        os.replace(draft, path)
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror}.") from error
