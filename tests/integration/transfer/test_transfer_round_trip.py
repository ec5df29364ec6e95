"""Out of one project and into another: same numbers, bytes, hashes, labels and history."""

from __future__ import annotations

import json
from typing import Any

import pytest

from instar.redaction import register_secret
from instar.registry.transfer.exporting import ExportOptions
from instar.registry.transfer.importing import ImportOptions
from instar.registry.transfer.package import open_package
from instar.store.agents import load_candidate
from instar.store.artifacts import ArtifactRef, describe_artifact, resolve
from instar.store.audit import first_broken_link
from instar.store.labels import ANY, LabelMove, list_label_events, move_label
from instar.store.projects import create_project
from instar.store.session import Database
from instar_core.errors import ConflictError, InvalidContent, UserError
from instar_skills.archives import read_archive
from tests.integration.transfer.conftest import (
    ADMIN,
    PERSON,
    an_agent,
    bring_in,
    manifest_of,
    save,
    take_out,
)

pytestmark = pytest.mark.slow


def counts(database: Any, project: str) -> dict[str, int]:
    """Rows of a project in every table that an import could write."""
    tables = (
        "artifact",
        "version",
        "version_parent",
        "version_part",
        "label",
        "label_event",
        "blob",
        "task",
        "sealed_task",
    )
    return {
        table: database.query(
            f"select count(*) from instar.{table} where project_id = %s",  # noqa: S608 - own names
            project,
        )[0][0]
        for table in tables
    }


def test_export_import_export_gives_the_same(filled: Any) -> None:
    async def go(db: Database) -> None:
        first = await take_out(db, filled.project_id)
        other = await create_project(db, "other")
        report = await bring_in(db, other, first)
        assert report.written and not report.conflicts
        second = await take_out(db, other)
        assert manifest_of(second) == manifest_of(first)
        one, two = read_archive(first), read_archive(second)
        del one["manifest.json"], two["manifest.json"]
        assert one == two
        async with db.transaction(other) as session:
            loaded = await load_candidate(session, other, "desk", "production")
            old = await load_candidate(session, other, "desk", 1)
            events = await list_label_events(session, ArtifactRef(other, "agent", "desk"))
            assert await first_broken_link(session, other) is None
        assert loaded.digest == an_agent("two").digest
        assert old.digest == an_agent("one").digest
        moves = [(one.label, one.from_number, one.to_number) for one in events]
        assert moves == [
            ("production", None, 1),
            ("production", 1, 3),
            ("production", 3, 2),
            ("staging", None, 1),
            ("staging", 1, None),
        ]
        # Who moved them elsewhere is told, and is not who moved them here.
        assert {one.actor for one in events} == {ADMIN.name}
        assert {one.imported["actor"][1] for one in events} == {PERSON.name}

    filled.run(go)


def test_s125_the_export_covers_every_artifact_task_label_and_lesson(filled: Any) -> None:
    data = filled.run(lambda db: take_out(db, filled.project_id))
    files = read_archive(data)
    package = open_package(files)
    manifest = package.manifest
    rows = counts(filled, filled.project_id)
    assert len(manifest.artifacts) == rows["artifact"]
    assert len(package.versions) == rows["version"]
    assert sum(len(one.labels) for one in manifest.artifacts) == rows["label"]
    assert sum(len(one.label_history) for one in manifest.artifacts) == rows["label_event"]
    facts = [one.facts.tasks for one in package.versions if one.facts.tasks]
    assert sum(one.tasks + one.sealed for one in facts) == rows["task"]
    # In open formats: texts, folders, JSON lines.
    paths = list(files)
    assert any(path.endswith("/excel-merge/SKILL.md") for path in paths)
    assert any(path.endswith("/prompt.md") for path in paths)
    lessons = [path for path in paths if "/lessons/" in path]
    texts = b"".join(files[path] for path in lessons)
    for text in ("one", "two", "three"):
        assert f"learned {text}".encode() in texts
    (tasks,) = [path for path in paths if path.endswith("tasks.jsonl")]
    lines = [json.loads(line) for line in files[tasks].splitlines()]
    assert [line["id"] for line in lines] == ["t0", "t1", "t2", "t3"]
    agents = [json.loads(files[path]) for path in paths if path.endswith("/agent.json")]
    assert {one["components"]["instructions"]["content"] for one in agents} == {
        "one",
        "two",
        "three",
    }


def test_two_exports_are_the_same_bytes_but_for_the_moment(filled: Any) -> None:
    async def go(db: Database) -> None:
        first = read_archive(await take_out(db, filled.project_id))
        second = read_archive(await take_out(db, filled.project_id))
        one, two = json.loads(first.pop("manifest.json")), json.loads(second.pop("manifest.json"))
        assert first == second and list(first) == list(second)
        del one["moment"], two["moment"]
        assert one == two

    filled.run(go)


def test_a_second_import_and_a_dry_run_change_nothing(filled: Any) -> None:
    async def go(db: Database) -> str:
        data = await take_out(db, filled.project_id)
        other = await create_project(db, "other")
        dry = await bring_in(db, other, data, ImportOptions(dry_run=True))
        assert dry.dry_run and not dry.written and dry.versions > 0
        assert not any(counts(filled, other).values())
        first = await bring_in(db, other, data)
        told = first.model_copy(update={"dry_run": True, "written": False})
        assert told == dry
        before = counts(filled, other)
        audit = filled.query("select count(*) from instar.audit_event where project_id = %s", other)
        again = await bring_in(db, other, data)
        assert again.nothing and again.kept == again.artifacts
        assert counts(filled, other) == before
        assert audit == filled.query(
            "select count(*) from instar.audit_event where project_id = %s", other
        )
        return other

    filled.run(go)


def test_what_is_newer_is_added_and_labels_follow(filled: Any) -> None:
    async def go(db: Database) -> None:
        project = filled.project_id
        old = await take_out(db, project)
        other = await create_project(db, "other")
        await bring_in(db, other, old)
        ref = ArtifactRef(project, "agent", "desk")
        async with db.transaction(project) as session:
            await save(session, project, "prompt", "greeting", "Good day")
            move = LabelMove("production", 3, ANY, "forward", role="admin")
            await move_label(session, ref, move, PERSON)
        new = await take_out(db, project)
        report = await bring_in(db, other, new)
        assert (report.extended, report.created, report.versions, report.labels) == (2, 0, 1, 1)
        assert manifest_of(await take_out(db, other)) == manifest_of(new)
        # The older export has nothing to add, and takes nothing back.
        assert (await bring_in(db, other, old)).nothing
        assert manifest_of(await take_out(db, other)) == manifest_of(new)

    filled.run(go)


def test_a_history_that_parts_is_a_conflict_and_nothing_is_written(filled: Any) -> None:
    async def go(db: Database) -> None:
        project = filled.project_id
        data = await take_out(db, project)
        other = await create_project(db, "other")
        async with db.transaction(other) as session:
            await save(session, other, "prompt", "greeting", "Something else")
        before = counts(filled, other)
        with pytest.raises(ConflictError, match="greeting"):
            await bring_in(db, other, data)
        assert counts(filled, other) == before
        dry = await bring_in(db, other, data, ImportOptions(dry_run=True))
        assert len(dry.conflicts) == 1 and "version 1" in dry.conflicts[0]
        # Under other names there is no conflict, and the agent that is pinned by name still runs.
        report = await bring_in(db, other, data, ImportOptions(prefix="old-"))
        assert not report.conflicts
        async with db.transaction(other) as session:
            loaded = await load_candidate(session, other, "old-desk", "production")
        assert loaded.digest == an_agent("two").digest

    filled.run(go)


def test_a_label_that_went_another_way_is_a_conflict(filled: Any) -> None:
    async def go(db: Database) -> None:
        data = await take_out(db, filled.project_id)
        other = await create_project(db, "other")
        await bring_in(db, other, data)
        for project, number in ((other, 1), (filled.project_id, 3)):
            ref = ArtifactRef(project, "agent", "desk")
            async with db.transaction(project) as session:
                move = LabelMove("production", number, ANY, role="admin")
                await move_label(session, ref, move, PERSON)
        with pytest.raises(ConflictError, match="production"):
            await bring_in(db, other, await take_out(db, filled.project_id))

    filled.run(go)


def test_archived_things_arrive_archived_with_their_tags(filled: Any) -> None:
    async def go(db: Database) -> None:
        data = await take_out(db, filled.project_id)
        other = await create_project(db, "other")
        await bring_in(db, other, data)
        ref = ArtifactRef(other, "prompt", "greeting")
        async with db.transaction(other) as session:
            found = await resolve(session, ref)
            assert found.artifact.tags == ["x", "y"]
            assert found.artifact.description == "says hello"
            with pytest.raises(UserError):
                await resolve(session, ref, 2)
            await describe_artifact(session, ref, ADMIN, description="changed here")
        # What was edited here stays; descriptions are not history.
        assert (await bring_in(db, other, data)).nothing

    filled.run(go)


def test_a_known_secret_stops_the_export_or_is_masked(filled: Any) -> None:
    value = "canary-7f3a9b2c-export"

    async def go(db: Database) -> None:
        project = filled.project_id
        async with db.transaction(project) as session:
            reason = f"uses {value} here"
            await save(session, project, "prompt", "leaky", f"say {value}", reason=reason)
        register_secret(value)
        with pytest.raises(UserError, match="'leaky' version 1"):
            await take_out(db, project)
        data = await take_out(db, project, ExportOptions(redact=True))
        for path, content in read_archive(data).items():
            assert value.encode() not in content, path
        other = await create_project(db, "other")
        report = await bring_in(db, other, data)
        assert any("leaky" in note for note in report.notes)

    filled.run(go)


def test_references_to_secrets_are_named_and_their_values_are_not(filled: Any) -> None:
    reference = "${secret:mail-key}"

    async def go(db: Database) -> None:
        project = filled.project_id
        async with db.transaction(project) as session:
            await save(session, project, "prompt", "mailer", f"key {reference}")
        data = await take_out(db, project)
        named = json.loads(read_archive(data)["manifest.json"])["secrets"]
        assert named == [{"reference": "mail-key", "name": "mail-key"}]
        other = await create_project(db, "other")
        report = await bring_in(db, other, data)
        assert any("mail-key" in note for note in report.notes)

    filled.run(go)


def test_names_that_collide_on_some_systems_stay_apart(database: Any) -> None:
    names = ("read.me", "read-me", "read_me", "日本", "日木", "x" * 200, "x" * 199)

    async def go(db: Database) -> None:
        project = database.project_id
        async with db.transaction(project) as session:
            for name in names:
                await save(session, project, "prompt", name, f"I am {name}")
        data = await take_out(db, project)
        folders = {path.split("/")[2] for path in read_archive(data) if "/" in path}
        assert len({one.casefold() for one in folders}) == len(names)
        assert all(one.isascii() for one in folders)
        other = await create_project(db, "other")
        assert (await bring_in(db, other, data)).created == len(names)

    database.run(go)


def test_what_an_older_version_stored_goes_out_as_it_is(filled: Any) -> None:
    async def go(db: Database) -> bytes:
        async with db.transaction(filled.project_id) as session:
            await save(session, filled.project_id, "prompt", "odd", {"not": "a prompt"})
            await save(session, filled.project_id, "note", "free", "any kind was taken once")
        return await take_out(db, filled.project_id)

    filled.run(go)
    filled.query("update instar.artifact set kind = 'Odd / ../Kind' where name = 'free'")
    files = read_archive(filled.run(lambda db: take_out(db, filled.project_id)))
    assert b"any kind was taken once" in files.values()
    assert b'{"not":"a prompt"}' in files.values()
    # It is all there to read; what no kind takes today is refused on the way in, by name.
    with pytest.raises(InvalidContent) as refusal:
        open_package(files)
    assert "'odd'" in str(refusal.value) or "Odd / ../Kind" in str(refusal.value)


@pytest.mark.parametrize("broken", ["bytes", "extra", "missing", "digest", "kind", "number", "ref"])
def test_a_package_that_was_changed_is_refused_whole(filled: Any, broken: str) -> None:
    files = read_archive(filled.run(lambda db: take_out(db, filled.project_id)))
    manifest = json.loads(files["manifest.json"])
    prompt = next(path for path in files if path.endswith("prompt.md"))
    greeting = next(one for one in manifest["artifacts"] if one["name"] == "greeting")
    if broken == "bytes":
        files[prompt] += b"!"
    elif broken == "extra":
        files["more.txt"] = b"x"
    elif broken == "missing":
        del files[prompt]
    elif broken == "digest":
        greeting["versions"][0]["digest"] = "0" * 64
    elif broken == "kind":
        greeting["kind"] = "promt"
    elif broken == "number":
        greeting["versions"].pop(0)
    else:
        greeting["versions"][0]["parents"] = [
            {"kind": "prompt", "name": "greeting", "number": 3},
        ]
    files["manifest.json"] = json.dumps(manifest).encode()
    with pytest.raises(InvalidContent, match="nothing was written"):
        open_package(files)


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": "instar-project/2"}',
        b'{"format": "instar-project/1"}',
        b'{"format": "instar-project/1", "format": "instar-project/1"}',
        b"[" * 100_000,
        b"\xff",
        b'{"format": NaN}',
    ],
)
def test_a_manifest_that_is_none_is_refused(manifest: bytes) -> None:
    with pytest.raises(InvalidContent):
        open_package({"manifest.json": manifest})
    with pytest.raises(InvalidContent, match="no export"):
        open_package({"readme.txt": b"x"})
