"""Transfer: any registry comes back as it was, whatever its names, contents and moves are."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from instar.registry.transfer.exporting import ExportOptions, export_project
from instar.registry.transfer.importing import import_package
from instar.registry.transfer.package import open_package
from instar.store.artifacts import ArtifactRef, Draft, create_version, encode_content
from instar.store.audit import Author
from instar.store.labels import ANY, LabelMove, delete_label, delete_version, move_label
from instar.store.projects import create_project
from instar.store.session import Database
from instar_core.base import JsonValue, new_id
from instar_core.errors import InstarError, InvalidContent
from instar_skills.archives import pack_tar, read_archive
from instar_skills.content import encode_files

BY = Author("person", "key:someone")
TEXTS = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=40
)
NAMES = st.text(alphabet="abyz09-_.", min_size=1, max_size=12)
PATHS = st.text(alphabet="abXY19_é世", min_size=1, max_size=6)
LABELS = st.sampled_from(["production", "staging", "a.b", "x-1"])


@st.composite
def contents(draw: st.DrawFn) -> tuple[str, JsonValue]:
    """A kind and a content of it."""
    kind = draw(st.sampled_from(["prompt", "lessons", "skill", "memory_bank"]))
    if kind == "prompt":
        return kind, draw(TEXTS)
    if kind == "skill":
        files = draw(st.dictionaries(PATHS, st.binary(max_size=30), max_size=4))
        header = json.dumps(draw(TEXTS.filter(str.strip)), ensure_ascii=True)
        files = {path: data for path, data in files.items() if path.lower() != "skill.md"}
        files["SKILL.md"] = f"---\nname: x\ndescription: {header}\n---\n{draw(TEXTS)}".encode()
        return kind, {"files": encode_files(files)}
    texts = draw(st.lists(TEXTS.filter(str.strip), max_size=4))
    entries: list[JsonValue] = [{"id": f"e{n}", "text": text} for n, text in enumerate(texts)]
    return kind, {"entries": entries}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), NAMES, contents(), st.integers(0, 9)),
        st.tuples(st.just("label"), LABELS, st.integers(0, 30), st.integers(1, 4)),
        st.tuples(st.just("unlabel"), LABELS, st.integers(0, 30), st.just(0)),
        st.tuples(st.just("archive"), st.just(""), st.integers(0, 30), st.integers(1, 4)),
    ),
    min_size=1,
    max_size=14,
)


async def apply(db: Database, project: str, steps: list[Any]) -> None:
    """Does what can be done of the steps; each in its own transaction, refused ones left out."""
    refs: list[ArtifactRef] = []
    ids: list[str] = []
    for what, first, second, third in steps:
        try:
            async with db.transaction(project) as session:
                if what == "save":
                    kind, content = second
                    ref = ArtifactRef(project, kind, first)
                    data, media_type = encode_content(content)
                    parents = ids[-1 - third : len(ids) - third] if third < len(ids) else []
                    evidence: JsonValue = {"because": [third, first]}
                    draft = Draft(data, media_type, BY, first, evidence, parents=parents)
                    ids.append((await create_version(session, ref, draft)).id)
                    refs.append(ref)
                elif refs:
                    ref = refs[second % len(refs)]
                    if what == "label":
                        move = LabelMove(first, third, ANY, "because", role="admin")
                        await move_label(session, ref, move, BY)
                    elif what == "unlabel":
                        await delete_label(session, ref, first, BY, unlock=True)
                    else:
                        await delete_version(session, ref, third, BY)
        except InstarError:
            continue


async def take_out(db: Database, project: str) -> dict[str, bytes]:
    """The files of an export."""
    target = io.BytesIO()
    async with db.snapshot(project) as session:
        await export_project(session, project, target, ExportOptions())
    return read_archive(target.getvalue())


def comparable(files: dict[str, bytes]) -> dict[str, Any]:
    """All files, the manifest without moment and project."""
    manifest = json.loads(files["manifest.json"])
    del manifest["moment"], manifest["project"]
    return {**files, "manifest.json": manifest}


@pytest.mark.slow
@given(steps=STEPS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_registry_comes_back_as_it_was(database: Any, steps: list[Any]) -> None:
    async def go(db: Database) -> None:
        here = await create_project(db, f"p{new_id()}")
        there = await create_project(db, f"p{new_id()}")
        await apply(db, here, steps)
        first = await take_out(db, here)
        package = open_package(read_archive(pack_tar(first)))
        async with db.transaction(there) as session:
            await import_package(session, there, package, BY)
        assert comparable(await take_out(db, there)) == comparable(first)
        async with db.transaction(there) as session:
            assert (await import_package(session, there, package, BY)).nothing
        # What grows on here follows there.
        await apply(db, here, [("save", "later", ("prompt", "more"), 0), *steps[:3]])
        grown = await take_out(db, here)
        async with db.transaction(there) as session:
            await import_package(session, there, open_package(grown), BY)
        assert names(await take_out(db, there)) == names(grown)

    database.run(go)


def names(files: dict[str, bytes]) -> list[Any]:
    """Kinds, names, digests and labels."""
    manifest = json.loads(files["manifest.json"])
    return [
        [
            one["kind"],
            one["name"],
            [version["digest"] for version in one["versions"]],
            one["labels"],
            one["label_history"],
        ]
        for one in manifest["artifacts"]
    ]


@given(data=st.binary(max_size=400))
def test_no_bytes_make_the_reader_fail_otherwise_than_by_refusing(data: bytes) -> None:
    for head in (b"", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b\x08\x00"):
        try:
            read_archive(head + data)
        except InvalidContent:
            continue


@given(place=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_changes_nothing(place: int, byte: int) -> None:
    files = {"a/SKILL.md": b"text", "b.bin": bytes(range(50))}
    packed = bytearray(pack_tar(files))
    packed[place % len(packed)] = byte
    try:
        assert read_archive(bytes(packed)) == files
    except InvalidContent:
        pass
