"""Archives and folders of strangers: read whole, or refused whole with nothing written."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from instar_core.errors import InvalidContent, UserError
from instar_skills.archives import ArchiveLimits, pack_tar, read_archive, read_tar, read_zip
from instar_skills.disk import read_folder, write_folder
from instar_skills.paths import check_path, check_paths

EVIL_PATHS = (
    "../x",
    "a/../../x",
    "/etc/passwd",
    "C:/x",
    "c:x",
    "a\\b",
    "a\x00b",
    "a/b.",
    "a/b ",
    " a/b",
    "a//b",
    "./../x",
    "a/./b",
    "a\u2215b",
    "a\uff0fb",
    "..\uff0fx",
    "a\u2028b",
    "a\u202eb",
    "\u200bname",
    "CON",
    "con .txt",
    "a/nul.txt",
    "LPT1",
    "com\u00b9",
    ".git/config",
    "a/.GIT/hooks/post-checkout",
    "\uff0e\uff0e/x",
    "x" * 300,
    "/".join(["a"] * 40),
    "",
    "a/",
    "\udcff",
)


def tar_of(*members: tarfile.TarInfo, packed: bool = True, content: bytes = b"hello") -> bytes:
    """A tar with these entries, whatever they are."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz" if packed else "w") as archive:
        for member in members:
            if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                archive.addfile(member)
    return target.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, **more: object) -> tarfile.TarInfo:
    """One entry of a tar."""
    member = tarfile.TarInfo(name)
    member.type = kind
    for key, value in more.items():
        setattr(member, key, value)
    return member


def zip_of(
    *members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED
) -> bytes:
    """A zip with these entries."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return target.getvalue()


@pytest.mark.parametrize("path", EVIL_PATHS)
def test_a20_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(InvalidContent):
        check_path(path)


@pytest.mark.parametrize("path", EVIL_PATHS)
def test_a20_an_archive_with_such_a_path_is_refused_whole(path: str) -> None:
    if "\x00" not in path and path not in ("", "a/", "\udcff"):
        with pytest.raises(InvalidContent):
            read_tar(tar_of(entry("fine.txt"), entry(path)))
    if path and path not in ("a/", "\udcff"):
        with pytest.raises(InvalidContent):
            read_zip(zip_of(("fine.txt", b"x"), (_raw_name(path), b"x")))


def _raw_name(path: str) -> zipfile.ZipInfo:
    """An entry whose name is written as it is: the library would mend some of them."""
    made = zipfile.ZipInfo("x")
    made.filename = path
    made.orig_filename = path
    return made


def test_a20_writing_never_follows_a_folder_that_became_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    inside = tmp_path / "inside"
    inside.symlink_to(outside)
    with pytest.raises(UserError, match="link"):
        write_folder(inside, {"a.txt": b"x"})
    target = tmp_path / "target"
    target.mkdir()
    (target / "sub").symlink_to(outside)
    with pytest.raises(UserError, match="not empty"):
        write_folder(target, {"sub/a.txt": b"x"})
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (tarfile.SYMTYPE, {"linkname": "/etc/passwd"}),
        (tarfile.SYMTYPE, {"linkname": "fine.txt"}),
        (tarfile.LNKTYPE, {"linkname": "fine.txt"}),
        (tarfile.CHRTYPE, {"devmajor": 1, "devminor": 3}),
        (tarfile.BLKTYPE, {"devmajor": 8, "devminor": 0}),
        (tarfile.FIFOTYPE, {}),
        (tarfile.CONTTYPE, {}),
        (tarfile.REGTYPE, {"mode": 0o4755}),
        (tarfile.REGTYPE, {"mode": 0o2755}),
        (tarfile.DIRTYPE, {"mode": 0o1777}),
    ],
)
def test_a21_links_and_specials_in_a_tar_are_refused(kind: bytes, more: dict[str, object]) -> None:
    with pytest.raises(InvalidContent, match="refused"):
        read_tar(tar_of(entry("fine.txt"), entry("evil", kind, **more)))


@pytest.mark.parametrize("mode", [stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o644, 0o104755])
def test_a21_links_and_specials_in_a_zip_are_refused(mode: int) -> None:
    evil = zipfile.ZipInfo("evil")
    evil.external_attr = mode << 16
    with pytest.raises(InvalidContent, match="refused"):
        read_zip(zip_of(("fine.txt", b"x"), (evil, b"/etc/passwd")))


def test_a21_a_folder_with_a_link_or_a_pipe_is_refused_on_the_way_in(tmp_path: Path) -> None:
    folder = tmp_path / "skill"
    folder.mkdir()
    (folder / "SKILL.md").write_text("x")
    (folder / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(InvalidContent, match="passwd"):
        read_folder(folder)
    (folder / "passwd").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(InvalidContent, match="pipe"):
        read_folder(folder)
    (folder / "pipe").unlink()
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    with pytest.raises(InvalidContent):
        read_folder(linked)


def test_a21_modes_are_normalised_on_the_way_out(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        write_folder(tmp_path / "out", {"scripts/run.sh": b"#!/bin/sh\n"})
    finally:
        os.umask(old)
    mode = (tmp_path / "out" / "scripts" / "run.sh").stat().st_mode
    assert stat.S_IMODE(mode) == 0o644


def test_a22_a_bomb_is_stopped_by_the_bytes_that_came_out() -> None:
    zeros = bytes(4 * 2**20)
    for packed in (tar_of(entry("zeros"), content=zeros), zip_of(("zeros", zeros))):
        assert len(packed) < 20_000
        with pytest.raises(InvalidContent, match="bomb"):
            read_archive(packed)
    limits = ArchiveLimits(total_bytes=100_000, ratio=10**9)
    for packed in (tar_of(entry("zeros"), content=zeros), zip_of(("zeros", zeros))):
        with pytest.raises(InvalidContent, match="more than 100000 bytes"):
            read_archive(packed, limits)


def test_a22_a_header_that_lies_about_its_size_is_not_believed() -> None:
    # A pax header that claims eight gigabytes: a reader that trusts it asks for them at once.
    huge = entry("PaxHeader", tarfile.XHDTYPE)
    huge.size = 8 * 2**30
    block = huge.tobuf(tarfile.GNU_FORMAT)
    packed = gzip.compress(block + bytes(2**20))
    with pytest.raises(InvalidContent):
        read_tar(packed, ArchiveLimits(total_bytes=2**22))
    shown = bytearray(zip_of(("a.txt", b"hello" * 10_000)))
    place = shown.rindex(b"PK\x01\x02") + 24
    shown[place : place + 4] = (5).to_bytes(4, "little")
    with pytest.raises(InvalidContent):
        read_zip(bytes(shown))


def test_a22_too_many_files_doubled_names_and_colliding_ones_are_refused() -> None:
    limits = ArchiveLimits(files=50)
    many = [(f"f{n}", b"") for n in range(60)]
    with pytest.raises(InvalidContent, match="more than 50 files"):
        read_zip(zip_of(*many), limits)
    with pytest.raises(InvalidContent, match="more than 50 files"):
        read_tar(tar_of(*(entry(name) for name, _ in many)), limits)
    with pytest.raises(InvalidContent, match="twice"):
        read_tar(tar_of(entry("a"), entry("a")))
    with pytest.warns(UserWarning, match="Duplicate"):
        doubled = zip_of(("a", b"1"), ("a", b"2"))
    with pytest.raises(InvalidContent, match="twice"):
        read_zip(doubled)
    for first, second in (
        ("Readme.md", "README.md"),
        ("é.txt", "e\u0301.txt"),
        ("ﬁle", "file"),
        ("a", "a/b"),
        ("A/x", "a/y"),
    ):
        with pytest.raises(InvalidContent):
            check_paths([first, second])
        with pytest.raises(InvalidContent):
            read_tar(tar_of(entry(first), entry(second)))


def test_a22_overlapping_entries_are_refused() -> None:
    data = bytearray(zip_of(("a", b"x" * 100), ("b", b"y" * 100), method=zipfile.ZIP_STORED))
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 4)
    # The second entry claims the bytes of the first.
    data[second + 42 : second + 46] = (0).to_bytes(4, "little")
    with pytest.raises(InvalidContent):
        read_zip(bytes(data))


def test_a22_nested_archives_stay_closed() -> None:
    inner = zip_of(("zeros", bytes(10**6)))
    assert read_zip(zip_of(("inner.zip", inner)))["inner.zip"] == inner


@pytest.mark.parametrize("cut", [1, 100, 400])
def test_what_is_cut_short_or_no_archive_is_refused(cut: int) -> None:
    packed = tar_of(entry("a.txt"), content=os.urandom(2_000))
    with pytest.raises(InvalidContent, match="archive"):
        read_archive(packed[: len(packed) - cut])
    with pytest.raises(InvalidContent, match="archive"):
        read_archive(b"no archive at all" * 100)


def test_an_encrypted_zip_is_refused() -> None:
    data = bytearray(zip_of(("a", b"x")))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(InvalidContent, match="encrypted"):
        read_zip(bytes(data))


def test_plain_archives_and_folders_come_back_as_they_were(tmp_path: Path) -> None:
    files = {"SKILL.md": b"a\r\n", "assets/图.bin": bytes(range(256)), "e.txt": b""}
    packed = pack_tar(files)
    assert read_archive(packed) == files
    assert pack_tar(dict(reversed(files.items()))) == packed
    write_folder(tmp_path / "out", files)
    assert read_folder(tmp_path / "out") == files
    assert read_zip(zip_of(*files.items())) == files
    (tmp_path / "out" / ".git").mkdir()
    left: list[str] = []
    assert read_folder(tmp_path / "out", left_out=left) == files
    assert left == [".git"]
