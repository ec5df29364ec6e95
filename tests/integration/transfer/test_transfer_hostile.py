"""Packages that could not have come from here, and imports beside other writers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from instar.registry.transfer.package import open_package
from instar.store.artifacts import ArtifactRef, resolve
from instar.store.audit import Author
from instar.store.contents import MAX_DEPTH, MAX_EVIDENCE_BYTES
from instar.store.labels import ANY, LabelMove, list_labels, move_label, protect_label
from instar.store.projects import create_project
from instar.store.session import Database
from instar.store.transfer import PlacedLabel, place_labels
from instar_core.base import canonical_json, content_hash, new_id
from instar_core.errors import ConflictError, InvalidContent
from instar_skills.archives import read_archive
from tests.integration.transfer.conftest import (
    ADMIN,
    PERSON,
    bring_in,
    manifest_of,
    save,
    take_out,
)

pytestmark = pytest.mark.slow


def _artifact(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in manifest["artifacts"] if one["name"] == name)
    return found


def _label(name: str) -> dict[str, Any]:
    return {"name": name, "number": 1, "move_role": "operator"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(
            lambda m: _artifact(m, "greeting")["labels"].append(_label("latest")),
            "'latest' cannot be a label",
            id="a label that is a word of its own",
        ),
        pytest.param(
            lambda m: _artifact(m, "greeting")["labels"].append(_label(".x")),
            "'.x' cannot be a label",
            id="a label that no move could make",
        ),
        pytest.param(
            lambda m: _artifact(m, "desk").update(archived=True),
            "names no version that is in force",
            id="a label on what is archived",
        ),
        pytest.param(
            lambda m: _artifact(m, "desk")["versions"][0]["parts"].append(
                _artifact(m, "desk")["versions"][0]["parts"][0]
            ),
            "pins two parts under one name",
            id="a part twice",
        ),
    ],
)
def test_a_package_never_brings_what_could_not_be_made_here(
    filled: Any, change: Any, told: str
) -> None:
    files = read_archive(filled.run(lambda db: take_out(db, filled.project_id)))
    manifest = json.loads(files["manifest.json"])
    change(manifest)
    files["manifest.json"] = json.dumps(manifest).encode()
    with pytest.raises(InvalidContent, match=told):
        open_package(files)


@pytest.mark.parametrize("broken", ["twice", "bindings"])
def test_a_task_list_that_lists_one_twice_or_binds_nonsense_is_refused(
    filled: Any, broken: str
) -> None:
    files = read_archive(filled.run(lambda db: take_out(db, filled.project_id)))
    manifest = json.loads(files["manifest.json"])
    version = next(one for one in manifest["artifacts"] if one["kind"] == "task_set")["versions"][0]
    listed = json.loads(files.pop(version["blob"]))
    if broken == "bindings":
        listed["bindings"] = [1]
    else:
        listed["tasks"].append(next(one for one in listed["tasks"] if one["split"] == "sealed"))
        sealed = [
            [one["id"], one["content_digest"]]
            for one in listed["tasks"]
            if one["split"] == "sealed"
        ]
        version["tasks"] |= {"sealed": len(sealed), "sealed_digest": content_hash(sealed)}
    data = canonical_json(listed)
    digest = content_hash(data)
    manifest["files"] = [one for one in manifest["files"] if one["path"] != version["blob"]]
    version |= {"blob": f"blobs/{digest}", "digest": digest, "size": len(data)}
    manifest["files"].append({"path": f"blobs/{digest}", "sha256": digest, "size": len(data)})
    files[f"blobs/{digest}"] = data
    files["manifest.json"] = json.dumps(manifest).encode()
    told = "is listed twice" if broken == "twice" else "its bindings are no object"
    with pytest.raises(InvalidContent, match=told):
        open_package(files)


def test_evidence_at_its_limits_goes_out_and_comes_in(filled: Any) -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]

    async def go(db: Database) -> None:
        project = filled.project_id
        async with db.transaction(project) as session:
            long = "x" * (MAX_EVIDENCE_BYTES - 2)
            await save(session, project, "prompt", "deep", "x", evidence=deep)
            await save(session, project, "prompt", "long", "y", evidence=long)
        there = project
        for name in ("second", "third"):
            data = await take_out(db, there)
            there = await create_project(db, name)
            await bring_in(db, there, data)
        assert manifest_of(await take_out(db, there)) == manifest_of(await take_out(db, project))

    filled.run(go)


def test_an_import_never_lowers_who_may_move_a_label(filled: Any) -> None:
    async def go(db: Database) -> None:
        project = filled.project_id
        other = await create_project(db, "other")
        async with db.transaction(project) as session:
            await save(session, project, "prompt", "p", "one")
            ref = ArtifactRef(project, "prompt", "p")
            await move_label(session, ref, LabelMove("live", 1, ANY), PERSON)
        await bring_in(db, other, await take_out(db, project))
        here = ref._replace(project_id=other)
        async with db.transaction(other) as session:
            await protect_label(session, here, "live", ADMIN, role="admin")
        async with db.transaction(project) as session:
            await save(session, project, "prompt", "p", "two")
            await move_label(session, ref, LabelMove("live", 2, ANY), PERSON)
        await bring_in(db, other, await take_out(db, project))
        async with db.transaction(other) as session:
            (label,) = await list_labels(session, here)
        assert (label.number, label.move_role, label.protected) == (2, "admin", True)

    filled.run(go)


def test_a_label_that_a_promotion_moved_meanwhile_is_left_where_it_is(filled: Any) -> None:
    async def go(db: Database) -> None:
        project = filled.project_id
        ref = ArtifactRef(project, "agent", "desk")
        async with db.transaction(project) as session:
            seen = {one.name: one.number for one in await list_labels(session, ref)}
            name, number = next(iter(seen.items()))
            first = (await resolve(session, ref, 1)).version
            move = LabelMove(name, 1 if number != 1 else 3, ANY, unlock=True)
            await move_label(session, ref, move, Author("run", new_id()))
        with pytest.raises(ConflictError, match="while this import was planned"):
            async with db.transaction(project) as session:
                now = {name: PlacedLabel(first.id, 1, "operator", number)}
                await place_labels(session, ref, [], now, ADMIN)
        async with db.transaction(project) as session:
            after = {one.name: one.number for one in await list_labels(session, ref)}
        assert after[name] == move.to

    filled.run(go)
