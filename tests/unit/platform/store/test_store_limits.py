"""Limits of what is stored: refused with the limit in the message, and nothing is written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from instar.store.artifacts import (
    ArtifactRef,
    Draft,
    create_version,
    describe_artifact,
    encode_content,
)
from instar.store.audit import Author
from instar.store.contents import MAX_DEPTH, is_too_deep
from instar.store.labels import LabelMove, move_label
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.base import JsonValue
from instar_core.errors import InvalidContent

ANNA = Author("person", "anna")


def _nested(depth: int) -> JsonValue:
    value: JsonValue = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        (b"", False),
        (b"[1, 2]", False),
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, False),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), True),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, True),
        (b"[" * 100_000, True),
        (b"[" + b"[]," * 100_000 + b"[]]", False),
        (b'"' + b"[" * 100_000 + b'"', False),
        (b'["\\"' + b"[" * 100_000 + b'"]', False),
        (b'{"' + b"{" * 100_000 + b'": "\\\\"}', False),
        (b'"' + b"[" * 100_000, True),
        (b"]" * 100_000, False),
        (b"[}" * 100_000, False),
    ],
)
def test_depth_is_told_without_parsing(text: bytes, deep: bool) -> None:
    assert is_too_deep(text) is deep
    if not deep:
        # What passes is within what a parser can bear, whether it is JSON or not.
        try:
            json.loads(text)
        except ValueError:
            pass


def test_contents_nest_to_the_limit_and_no_further() -> None:
    encode_content(_nested(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(InvalidContent, match=f"more than {MAX_DEPTH} objects and arrays"):
            encode_content(_nested(depth))


def _rows(database: MigratedDatabase) -> list[tuple[Any, ...]]:
    tables = ("artifact", "version", "blob", "label", "label_event", "audit_event")
    return [database.query(f"select count(*) from {table}")[0] for table in tables]


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"content": b"x" * 5_000_001}, "5,000,001 bytes; at most 5,000,000"),
        ({"content": b"[" * 201 + b"]" * 201, "media_type": "application/json"}, "200 objects"),
        ({"reason": "x" * 20_001}, "the reason has 20,001 characters; at most 20,000"),
        ({"reason": "a\x00b"}, "the reason holds a NUL"),
        ({"reason": "\ud800"}, "the reason holds half a character"),
        ({"description": "x" * 10_001}, "the description has 10,001 characters"),
        ({"evidence": "x" * 1_000_001}, "the evidence has 1,000,003 bytes"),
        ({"evidence": _nested(300)}, "the evidence cannot be stored"),
        ({"evidence": ["\x00"]}, "the evidence cannot be stored"),
    ],
)
def test_drafts_beyond_a_limit_store_nothing(
    database: MigratedDatabase, changes: dict[str, Any], message: str
) -> None:
    ref = ArtifactRef(database.project_id, "prompt", "greeting")
    draft = replace(Draft(*encode_content("Hello."), ANNA), **changes)

    async def work(db: Database) -> None:
        async with db.transaction(ref.project_id) as session:
            await create_version(session, ref, Draft(*encode_content("first"), ANNA))
        with pytest.raises(InvalidContent, match=message):
            async with db.transaction(ref.project_id) as session:
                await create_version(session, ref, draft)

    database.run(work)
    assert _rows(database) == [(1,), (1,), (1,), (0,), (0,), (1,)]


@pytest.mark.postgres
def test_the_limit_of_contents_is_a_setting(database: MigratedDatabase) -> None:
    ref = ArtifactRef(database.project_id, "prompt", "greeting")

    async def work(_: Database) -> None:
        db = Database(database.app_url, max_content_bytes=10)
        try:
            with pytest.raises(InvalidContent, match="11 bytes; at most 10"):
                async with db.transaction(ref.project_id) as session:
                    await create_version(session, ref, Draft(*encode_content("x" * 11), ANNA))
            async with db.transaction(ref.project_id) as session:
                await create_version(session, ref, Draft(*encode_content("x" * 10), ANNA))
                # What a kind bounds by itself brings its own limit.
                own = replace(Draft(*encode_content("x" * 11), ANNA), max_bytes=20)
                await create_version(session, ref, own)
        finally:
            await db.close()

    database.run(work)
    assert database.query("select count(*) from version") == [(2,)]


@pytest.mark.postgres
def test_descriptions_tags_and_causes_have_limits(database: MigratedDatabase) -> None:
    ref = ArtifactRef(database.project_id, "prompt", "greeting")

    async def work(db: Database) -> None:
        async with db.transaction(ref.project_id) as session:
            await create_version(session, ref, Draft(*encode_content("first"), ANNA))
        before = _rows(database)
        refused: list[dict[str, Any]] = [
            {"description": "x" * 10_001},
            {"description": "\ud800"},
            {"tags": ["x" * 101]},
            {"tags": ["a\x00"]},
            {"tags": [" "]},
            {"tags": [f"tag {number}" for number in range(51)]},
        ]
        for changes in refused:
            with pytest.raises(InvalidContent):
                async with db.transaction(ref.project_id) as session:
                    await describe_artifact(session, ref, ANNA, **changes)
        with pytest.raises(InvalidContent, match="the cause has 2,001 characters"):
            async with db.transaction(ref.project_id) as session:
                await move_label(session, ref, LabelMove("staging", 1, None, "x" * 2_001), ANNA)
        assert _rows(database) == before

    database.run(work)


@pytest.mark.postgres
def test_a_night_is_not_lost_over_a_long_note(database: MigratedDatabase) -> None:
    ref = ArtifactRef(database.project_id, "prompt", "learned")
    run = Author("run", "0190aaaa-0000-7000-8000-000000000001")

    async def work(db: Database) -> None:
        async with db.transaction(ref.project_id) as session:
            draft = Draft(*encode_content("Hi."), run, reason="x" * 30_000 + "\x00")
            saved = await create_version(session, ref, draft)
            assert len(saved.reason) == 20_000 and saved.run_id == run.name

    database.run(work)
