"""Lists of artifacts: filters, words in any language, and pages that stay where they are."""

from __future__ import annotations

import pytest

from instar.store.artifacts import (
    ArtifactFilter,
    ArtifactRef,
    Draft,
    create_version,
    describe_artifact,
    encode_content,
    list_artifacts,
    list_versions,
)
from instar.store.audit import Author
from instar.store.labels import LabelMove, delete_artifact, move_label
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar.store.words import index_words, query_words
from instar_core.base import JsonValue, new_id
from instar_core.errors import InvalidContent

ANNA = Author("person", "anna")
RUN = Author("run", new_id())


async def _save(db: Database, ref: ArtifactRef, content: JsonValue, by: Author = ANNA) -> None:
    async with db.transaction(ref.project_id) as session:
        await create_version(session, ref, Draft(*encode_content(content), by))


async def _names(db: Database, project: str, **filters: object) -> list[str]:
    async with db.transaction(project) as session:
        where = ArtifactFilter(**filters)  # type: ignore[arg-type]
        page = await list_artifacts(session, project, where=where)
        return sorted(row.name for row in page.items)


@pytest.mark.postgres
def test_artifacts_are_filtered_by_every_property(database: MigratedDatabase) -> None:
    project = database.project_id
    ref = ArtifactRef(project, "prompt", "greeting")

    async def work(db: Database) -> None:
        await _save(db, ref, "Hello.")
        await _save(db, ref._replace(name="farewell"), "Bye.")
        await _save(db, ref._replace(kind="skill", name="cooking"), "Salt.", RUN)
        await _save(db, ref._replace(name="old"), "Gone.")
        async with db.transaction(project) as session:
            await describe_artifact(session, ref, ANNA, tags=["friendly", "short"])
            await move_label(session, ref, LabelMove("staging", 1, None), ANNA)
            await delete_artifact(session, ref._replace(name="old"), ANNA)
        assert await _names(db, project) == ["cooking", "farewell", "greeting"]
        assert await _names(db, project, kind="prompt") == ["farewell", "greeting"]
        assert await _names(db, project, tag="friendly") == ["greeting"]
        assert await _names(db, project, tag="friend") == []
        assert await _names(db, project, owner_kind="run") == ["cooking"]
        assert await _names(db, project, label="staging") == ["greeting"]
        assert await _names(db, project, archived=True) == ["old"]
        assert await _names(db, project, kind="prompt", tag="short", label="none") == []
        for bad in ({"kind": "\x00"}, {"q": "x" * 501}, {"tag": "a\x00"}):
            with pytest.raises(InvalidContent, match="the filter"):
                await _names(db, project, **bad)

    database.run(work)


@pytest.mark.postgres
def test_words_of_name_description_tags_and_newest_content_are_found(
    database: MigratedDatabase,
) -> None:
    project = database.project_id
    ref = ArtifactRef(project, "prompt", "support-desk/lessons")

    async def work(db: Database) -> None:
        await _save(db, ref, {"entries": ["Refunds need a \u201creceipt\u201d.\nAsk kindly."]})
        await _save(db, ref._replace(name="other"), "Ships sail.")
        for q in ("refunds", "REFUNDS", "receipt", "ask kindly", '"need a"', "desk", "lessons"):
            assert await _names(db, project, q=q) == [ref.name], q
        assert await _names(db, project, q="refunds ships") == []
        assert await _names(db, project, q="refunds or ships") == ["other", ref.name]
        assert await _names(db, project, q="ships -sail") == []
        async with db.transaction(project) as session:
            await describe_artifact(session, ref, ANNA, description="For clerks.", tags=["till"])
        for q in ("clerks", "till", "receipt"):
            assert await _names(db, project, q=q) == [ref.name], q
        await _save(db, ref, "Nothing of that.")
        assert await _names(db, project, q="receipt") == []
        assert await _names(db, project, q="clerks") == [ref.name]
        # Whatever is typed is a question, never an error.
        for q in ("'", "a & | !", '"', "((", "-", "%", "\\"):
            await _names(db, project, q=q)

    database.run(work)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("content", "q"),
    [
        ("\u8acb\u5148\u78ba\u8a8d\u8a02\u55ae\u865f\u78bc", "\u8a02\u55ae"),
        ("\u9818\u53ce\u66f8\u3092\u78ba\u8a8d\u3059\u308b", "\u78ba\u8a8d"),
        ("\u041f\u0440\u043e\u0432\u0435\u0440\u044c \u0427\u0415\u041a", "\u0447\u0435\u043a"),
        ("Gr\u00fc\u00dfe aus K\u00f6ln", "GR\u00dcSSE"),
        ("\u0e01\u0e23\u0e38\u0e13\u0e32\u0e15\u0e23\u0e27\u0e08", "\u0e15\u0e23\u0e27\u0e08"),
        ("caf\u00e9", "cafe\u0301"),
    ],
)
def test_words_are_found_in_any_language(database: MigratedDatabase, content: str, q: str) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        await _save(db, ArtifactRef(project, "prompt", "found"), content)
        await _save(db, ArtifactRef(project, "prompt", "other"), "nothing")
        assert await _names(db, project, q=q) == ["found"]

    database.run(work)


def test_huge_and_odd_contents_have_words() -> None:
    assert len(index_words("\u8a02" * 1_000_000)) < 200_000
    assert index_words(b"\xff\xfe") == ""
    assert index_words("a\x00b") == "a b"
    assert query_words("a\x00b") == "a b"


@pytest.mark.postgres
def test_a_content_of_many_words_can_be_saved(database: MigratedDatabase) -> None:
    ref = ArtifactRef(database.project_id, "prompt", "greeting")
    # Every word another one, of three bytes a letter: the largest index entry there can be.
    words = " ".join(chr(0x4E00 + i % 20_000) + chr(0xAC00 + i % 11_000) for i in range(200_000))

    async def work(db: Database) -> None:
        await _save(db, ref, words)
        await _save(db, ref, "x" * 1_000_000)
        assert await _names(db, database.project_id, q="greeting") == ["greeting"]

    database.run(work)


@pytest.mark.postgres
def test_pages_stay_where_they_are_while_artifacts_come_and_change(
    database: MigratedDatabase,
) -> None:
    project = database.project_id

    async def work(db: Database) -> list[str]:
        for number in range(7):
            await _save(db, ArtifactRef(project, "prompt", f"p-{number}"), f"word {number}")
        seen: list[str] = []
        cursor: str | None = None
        where = ArtifactFilter(kind="prompt", q="word")
        for turn in range(4):
            async with db.transaction(project) as session:
                page = await list_artifacts(session, project, where=where, limit=2, cursor=cursor)
            seen += [row.name for row in page.items]
            cursor = page.next_cursor
            # A newer one, and a new version of one already shown: neither shifts the pages.
            await _save(db, ArtifactRef(project, "prompt", f"new-{turn}"), "word")
            await _save(db, ArtifactRef(project, "prompt", "p-6"), f"word again {turn}")
        assert cursor is None
        return seen

    assert database.run(work) == [f"p-{number}" for number in range(6, -1, -1)]


@pytest.mark.postgres
def test_versions_are_listed_by_number(database: MigratedDatabase) -> None:
    ref = ArtifactRef(database.project_id, "prompt", "greeting")

    async def work(db: Database) -> None:
        for number in range(5):
            await _save(db, ref, f"text {number}")
        async with db.transaction(ref.project_id) as session:
            assert [v.number for v in await list_versions(session, ref, limit=2)] == [5, 4]
            assert [v.number for v in await list_versions(session, ref, before=3)] == [2, 1]
            assert len(await list_versions(session, ref, before=10**30)) == 5

    database.run(work)
