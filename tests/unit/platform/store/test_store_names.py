"""Names of artifacts: what is refused, and which look alike."""

from __future__ import annotations

import pytest

from instar.store.artifacts import ArtifactRef, Draft, create_version, encode_content
from instar.store.audit import Author
from instar.store.names import check_kind, check_name, did_you_mean, skeleton
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.errors import InvalidContent

ANNA = Author("person", "anna")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "0 characters"),
        ("x" * 256, "256 characters"),
        ("a b", "white space"),
        ("a\tb", "white space"),
        ("a\u3000b", "white space"),
        ("a\x07b", "a control character"),
        ("a\u202eb", "an invisible character"),
        ("a\u200bb", "an invisible character"),
        ("a\u3164b", "shows nothing"),
        ("a\ud800b", "half a character"),
        ("a@b", "'@'"),
        ("a\\b", "holds"),
        ("/a", "begins or ends with '/'"),
        ("a/", "begins or ends with '/'"),
        ("a//b", "once at most"),
        ("a/b/c", "once at most"),
        ("..", "begins with '.'"),
        ("a/..", "begins with '.'"),
        (".git", "begins with '.'"),
        ("a/.git", "begins with '.'"),
        ("~root", "begins with '~'"),
        ("a.", "ends with '.'"),
        ("C:", "drive letter"),
        ("a/c:b", "drive letter"),
        ("CON", "device"),
        ("nul.txt", "device"),
        ("a/Com1.json", "device"),
        ("\uff0e\uff0e\uff0fx", "begins with '.'"),
        ("p\u0430ypal", "mixes Cyrillic and Latin"),
        ("\u03c1aper", "mixes Greek and Latin"),
    ],
)
def test_names_that_cannot_be_say_what_is_wrong(name: str, why: str) -> None:
    with pytest.raises(InvalidContent, match=why):
        check_name("prompt", name)


@pytest.mark.parametrize(
    "name",
    [
        "greeting",
        "support-desk/lessons",
        "v1.2_final",
        "x" * 255,
        "\u043f\u043e\u043c\u043e\u0449\u043d\u0438\u043a/lessons",
        "\u65e5\u672c\u8a9e\u30ab\u30bfkana",
        "\u0645\u0633\u0627\u0639\u062f",
        "caf\u00e9",
    ],
)
def test_names_of_any_language_are_accepted(name: str) -> None:
    check_name("prompt", name)


def test_an_agent_has_no_slash_in_its_name() -> None:
    with pytest.raises(InvalidContent, match="separates an agent from its component"):
        check_name("agent", "desk/lessons")


@pytest.mark.parametrize("kind", ["", "Prompt", "a-b", "1a", "a b", "x" * 65, "\u00fc"])
def test_kinds_are_lower_case_identifiers(kind: str) -> None:
    with pytest.raises(InvalidContent, match="cannot be a kind"):
        check_kind(kind)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("desk", "Desk"),
        ("desk", "\uff44\uff45\uff53\uff4b"),  # full width
        ("desk", "\u0501\u0435\u0455k"),  # Cyrillic letters
        ("apple", "\u0430\u0440\u0440\u04cf\u0435"),
        ("level1", "levell"),
        ("foo", "f0o"),
        ("stra\u00dfe", "STRASSE"),
        ("caf\u00e9", "cafe\u0301"),
        ("AB", "\u0391\u0392"),  # Greek capitals
    ],
)
def test_what_looks_alike_has_one_look(one: str, other: str) -> None:
    assert skeleton(one) == skeleton(other)


@pytest.mark.parametrize(
    ("one", "other"), [("desk", "disk"), ("a-b", "a_b"), ("ab", "a/b"), ("e", "\u00e9")]
)
def test_what_looks_different_has_two(one: str, other: str) -> None:
    assert skeleton(one) != skeleton(other)


def test_the_nearest_names_are_told() -> None:
    assert did_you_mean("greting", ["farewell", "Greeting"]) == "Did you mean 'Greeting'?"
    assert did_you_mean("zzz", ["farewell", "greeting"]) == "There are: farewell, greeting."
    assert did_you_mean("zzz", []) == ""


async def _save(db: Database, ref: ArtifactRef) -> int:
    async with db.transaction(ref.project_id) as session:
        return (await create_version(session, ref, Draft(*encode_content("Hi."), ANNA))).number


@pytest.mark.postgres
def test_a_name_that_looks_like_another_of_its_kind_is_refused(
    database: MigratedDatabase,
) -> None:
    ref = ArtifactRef(database.project_id, "prompt", "desk")

    async def work(db: Database) -> None:
        await _save(db, ref)
        for name in ("Desk", "\uff44\uff45\uff53\uff4b", "\u0501\u0435\u0455\u043a"):
            with pytest.raises(InvalidContent, match="looks like 'desk'"):
                await _save(db, ref._replace(name=name))
        # Another kind is another shelf; and the name itself goes on.
        await _save(db, ref._replace(kind="skill", name="Desk"))
        assert await _save(db, ref) == 2

    database.run(work)
    assert database.query("select name from artifact order by kind") == [("desk",), ("Desk",)]
    assert database.query("select count(*) from version") == [(3,)]


@pytest.mark.postgres
def test_names_from_before_the_rules_stay_usable(database: MigratedDatabase) -> None:
    for name, skeleton_ in (("old name", ""), ("Twin", "twin"), ("twin", "")):
        database.query(
            "insert into artifact (id, project_id, kind, name, skeleton) "
            "values (gen_random_uuid(), %s, 'prompt', %s, %s)",
            database.project_id,
            name,
            skeleton_,
        )

    async def work(db: Database) -> None:
        for name in ("old name", "twin", "Twin"):
            assert await _save(db, ArtifactRef(database.project_id, "prompt", name)) == 1

    database.run(work)
    found = database.query('select name, skeleton from artifact order by name collate "C"')
    assert found == [("Twin", "twin"), ("old name", "old name"), ("twin", "")]
