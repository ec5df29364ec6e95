"""Skill folders in and out: a corpus of real-looking ones, byte for byte; strict where asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from instar.registry.kinds import open_kind
from instar_core.errors import InvalidContent
from instar_skills.check import check_skill, folder_name, strict_copy
from instar_skills.disk import read_folder, write_folder
from instar_skills.document import read_document

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452") + bytes(range(256))

CORPUS: dict[str, dict[str, bytes]] = {
    "merge-sheets": {
        "SKILL.md": b"---\nname: merge-sheets\ndescription: Merges spreadsheets. Use for xlsx.\n"
        b'license: Apache-2.0\nmetadata:\n  author: team\n  version: "1.0"\n---\n'
        b"# Merge\n\nRun it.\n",
        "scripts/merge.py": b"#!/usr/bin/env python3\nprint('merged')\n",
        "references/formats.md": b"# Formats\n",
        "assets/logo.png": PNG,
    },
    "colon": {
        "SKILL.md": b"---\nname: colon\ndescription: Use when: a ticket is late\n---\nBody\n"
    },
    "bracket": {"SKILL.md": b"---\nname: bracket\ndescription: [beta] sorts mail\n---\nBody\n"},
    "brace": {"SKILL.md": b"---\nname: brace\ndescription: {draft} answers\n---\n"},
    "hash-value": {"SKILL.md": b"---\nname: hash-value\ndescription: '# of tickets'\n---\nx"},
    "bom": {"SKILL.md": b"\xef\xbb\xbf---\nname: bom\ndescription: has a mark\n---\nBody\n"},
    "crlf": {"SKILL.md": b"---\r\nname: crlf\r\ndescription: from elsewhere\r\n---\r\nBody\r\n"},
    "extras": {
        "SKILL.md": b"---\nname: extras\ndescription: with client fields\nargument-hint: FILE\n"
        b"disable-model-invocation: true\ntags: [a, b]\n---\nBody\n"
    },
    "lower": {"skill.md": b"---\nname: lower\ndescription: lower-case file name\n---\n"},
    "other-folder": {"SKILL.md": b"---\nname: right-name\ndescription: moved about\n---\nBody\n"},
    "表計算": {
        "SKILL.md": "---\nname: 表計算\ndescription: 表をまとめる：集計\n---\n# 手順\n".encode(),
        "scripts/集計.py": "print('合計')\n".encode(),
    },
    "Großes Ding": {
        "SKILL.md": "---\nname: Großes Ding\ndescription: Übergroß\n---\nTue es.\n".encode()
    },
    "folded": {
        "SKILL.md": b"---\nname: folded\ndescription: >-\n  A long text\n  over lines\n---\nBody\n"
    },
    "number": {"SKILL.md": b"---\nname: number\ndescription: 42\nlicense: 2024-01-01\n---\n"},
}
STRICT = {"merge-sheets", "hash-value", "folded", "表計算", "number", "crlf"}


@pytest.mark.parametrize("folder", CORPUS)
def test_a_folder_goes_in_and_out_byte_for_byte(folder: str, tmp_path: Path) -> None:
    files = CORPUS[folder]
    report = check_skill(files, folder=folder)
    assert report.strict == (folder in STRICT), report.problems
    kind: Any = open_kind("skill")
    content = kind.read_files(files)
    assert kind.files(content) == files
    assert kind.check(content) == content
    write_folder(tmp_path / "out", kind.files(content))
    assert read_folder(tmp_path / "out") == dict(sorted(files.items()))


@pytest.mark.parametrize("folder", CORPUS)
def test_a_strict_copy_passes_the_strict_check_and_keeps_the_rest(folder: str) -> None:
    files = CORPUS[folder]
    copy = strict_copy(files, folder)
    name = folder_name(copy, folder)
    report = check_skill(copy, folder=name, strict=True)
    assert report.strict and report.name == name
    if folder in STRICT:
        assert copy == files
    for path in set(files) - {"SKILL.md", "skill.md"}:
        assert copy[path] == files[path]
    before = read_document(next(v for k, v in files.items() if k.lower() == "skill.md").decode())
    after = read_document(copy["SKILL.md"].decode())
    assert (after.description, after.body) == (before.description, before.body)
    for key in before.extra:
        assert key in after.metadata
    assert strict_copy(copy, folder) == copy


@pytest.mark.parametrize("folder", ["colon", "bracket", "brace", "表計算"])
def test_s127_a_value_that_yaml_reads_as_more_does_not_lose_the_skill(folder: str) -> None:
    report = check_skill(CORPUS[folder], folder=folder)
    assert report.description
    if folder != "表計算":
        assert any("quot" in words for words in report.problems)
        with pytest.raises(InvalidContent, match="quot"):
            check_skill(CORPUS[folder], folder=folder, strict=True)


def test_s127_what_cannot_be_read_is_refused_with_line_and_fix() -> None:
    broken = {"SKILL.md": b"---\nname: x\ndescription: y\n  bad: [\n---\n"}
    with pytest.raises(InvalidContent, match="line 4"):
        check_skill(broken)
    for files in (
        {},
        {"README.md": b"x"},
        {"SKILL.md": b"no header"},
        {"SKILL.md": b"---\nname: x\n---\n"},
        {"SKILL.md": b"---\nname: x\ndescription: '  '\n---\n"},
        {"SKILL.md": b"---\nname: x\ndescription: never closed\n"},
        {"SKILL.md": b"\xff\xfe---"},
        {"SKILL.md": b"---\nname: x\ndescription: y\n---\n", "../evil": b""},
    ):
        with pytest.raises(InvalidContent):
            check_skill(files)


def test_s127_references_between_values_are_never_followed() -> None:
    bomb = b"---\na: &x [1, 1]\nb: &y [*x, *x]\nc: [*y, *y]\ndescription: d\n---\n"
    report = check_skill({"SKILL.md": bomb})
    assert report.description == "d" and not report.strict
    assert read_document(bomb.decode()).extra["c"] == "[*y, *y]"


@pytest.mark.parametrize("folder", ["bom", "crlf"])
def test_s128_a_byte_order_mark_or_crlf_is_read_past_and_kept(folder: str) -> None:
    files = CORPUS[folder]
    report = check_skill(files, folder=folder)
    assert report.name == folder and report.description
    kind: Any = open_kind("skill")
    assert kind.files(kind.read_files(files))["SKILL.md"] == files["SKILL.md"]


@pytest.mark.parametrize("name", ["../../x", ".git", "a" * 300, "ｓkill", "con", "-a", "A B", ""])
def test_a23_a_name_is_never_a_path(name: str) -> None:
    header = f"---\nname: {name}\ndescription: d\n---\n"
    made = folder_name({"SKILL.md": header.encode()}, "fall-back")
    assert made.replace("-", "").isalnum() and len(made) <= 64
    copy = strict_copy({"SKILL.md": header.encode()}, "fall-back")
    assert check_skill(copy, folder=folder_name(copy, "x"), strict=True).strict


def test_stamps_are_added_only_when_asked_for() -> None:
    files = CORPUS["merge-sheets"]
    assert strict_copy(files, "x") == files
    stamped = strict_copy(files, "x", {"instar.version": "3", "instar.sha256": "ab"})
    document = read_document(stamped["SKILL.md"].decode())
    assert document.metadata["instar.version"] == "3" and document.metadata["author"] == "team"
    assert not document.problems


def test_what_is_too_long_cannot_be_made_strict() -> None:
    files = {"SKILL.md": f"---\nname: x\ndescription: {'d' * 2000}\n---\n".encode()}
    assert check_skill(files).description
    with pytest.raises(InvalidContent, match="1024"):
        strict_copy(files, "x")
