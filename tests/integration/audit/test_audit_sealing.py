"""Sealing: one checkpoint however many seal, small ones, many streams, upgrades, key rotation."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from instar.audit import verify, writer
from instar.audit.chain import walk_chain
from instar.audit.keys import (
    audit_dir,
    ensure_signing_key,
    load_signer,
    rotate_signing_key,
    signing_key_file,
    trusted_keys,
)
from instar.audit.verify import Evidence
from instar.audit.writer import Sealer
from instar.store.audit import SYSTEM, AuditEntry, append_audit
from instar.store.session import Database
from instar_core.base import content_hash, new_id
from instar_core.errors import PrerequisiteError, StoreError

if TYPE_CHECKING:
    from tests.integration.audit.conftest import Trail
else:
    Trail = Any

pytestmark = pytest.mark.postgres


def test_nothing_new_seals_nothing_and_a_checkpoint_names_what_grew(trail: Trail) -> None:
    assert trail.seal() == 0
    trail.write(3)
    assert trail.seal() == 1
    document = json.loads(trail.copy.read_bytes().splitlines()[-1])["document"]
    assert [head[:2] for head in document["heads"]] == [["admin", 13]]
    assert (document["rows"], document["streams"], document["seq"]) == (17, 2, 3)
    links = trail.database.query(
        "select left(hash, 8) from audit_event where stream = 'admin' and seq > 10 order by seq"
    )
    assert document["heads"][0][3] == "".join(link for (link,) in links)
    assert trail.verify().ok


def test_two_that_seal_at_once_write_one_checkpoint(trail: Trail) -> None:
    trail.write(2)

    async def work(db: Database) -> int:
        sealers = [Sealer.open(db, trail.settings) for _ in range(4)]
        made = await asyncio.gather(
            *(sealer.seal_project(trail.database.project_id) for sealer in sealers)
        )
        return sum(len(one) for one in made)

    assert trail.database.run(work) == 1
    report = trail.verify()
    assert report.ok and (report.checkpoints, report.outside) == (3, 3)


def test_sealing_waits_for_no_writer_and_leaves_none_waiting(trail: Trail) -> None:
    project = trail.database.project_id

    async def work(db: Database) -> None:
        entry = AuditEntry(action="test.slow", subject="x")
        async with db.transaction(project) as session:
            await append_audit(session, project, entry, SYSTEM)
            # The writer's transaction is still open: it holds the head of the admin stream.
            sealer = Sealer.open(db, trail.settings)
            assert await sealer.seal_project(project) == []
        assert len(await sealer.seal_project(project)) == 1

    trail.database.run(work)
    assert trail.verify().ok


def test_many_streams_are_sealed_in_parts(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_HEADS", 3)
    for _ in range(7):
        trail.write(1, new_id())
    assert trail.seal() == 3
    documents = [json.loads(line)["document"] for line in trail.copy.read_bytes().splitlines()]
    assert [document["complete"] for document in documents] == [True, True, False, False, True]
    assert trail.verify().ok
    trail.database.query(
        "update audit_checkpoint set document = cast(replace(cast(document as text), "
        "'\"complete\":false', '\"complete\":true') as json) where seq = 3"
    )
    assert not trail.verify().ok


def test_a_stream_that_a_checkpoint_left_out_is_noticed(trail: Trail) -> None:
    # As if the sealer had been told that the run's stream was sealed already.
    trail.write(1, trail.run)
    trail.write(1)
    trail.database.query("update audit_sealed set seq = 5 where stream = %s", trail.run)
    trail.seal()
    report = trail.verify()
    assert report.bad is not None and report.bad.stream == "checkpoints"
    assert "does not name every row" in report.bad.what


def test_rows_of_the_first_release_verify_with_their_own_link(trail: Trail) -> None:
    """A stream that 0001 wrote (its link without the moment) goes on in the new format."""
    database, stream, previous = trail.database, new_id(), ""
    for seq in range(1, 4):
        link = content_hash(
            [previous, seq, stream, ["system", "instar"], ["old", "x"], {"step": seq}]
        )
        database.query(
            "insert into audit_event (id, project_id, stream, seq, actor_kind, actor, action, "
            "subject, details, previous_hash, hash, format) values (%s, %s, %s, %s, 'system', "
            "'instar', 'old', 'x', %s, %s, %s, 1)",
            *(new_id(), database.project_id, stream, seq, json.dumps({"step": seq})),
            *(previous, link),
        )
        previous = link
    database.query(
        "insert into audit_head (project_id, stream, seq, hash) values (%s, %s, 3, %s)",
        *(database.project_id, stream, previous),
    )
    trail.write(2, stream)
    assert trail.verify().ok
    trail.seal()
    assert trail.verify().ok
    database.query("update audit_event set subject = 'y' where seq = 2 and stream = %s", stream)
    report = trail.verify()
    assert report.bad is not None and (report.bad.stream, report.bad.seq) == (stream, 2)
    database.query("update audit_event set subject = 'x' where seq = 2 and stream = %s", stream)
    database.query("update audit_event set format = 1 where seq = 5 and stream = %s", stream)
    report = trail.verify()
    assert report.bad is not None and "downgraded" in report.bad.what


def test_a_lost_copy_is_written_again(trail: Trail) -> None:
    before = trail.copy.read_bytes()
    trail.copy.unlink()
    assert trail.seal() == 0
    assert trail.copy.read_bytes() == before
    assert stat.S_IMODE(trail.copy.stat().st_mode) == 0o600


def test_a_copy_that_cannot_be_written_is_told_and_follows_later(trail: Trail) -> None:
    trail.write(1)
    kept = trail.copy.read_bytes()
    trail.copy.unlink()
    trail.copy.mkdir()
    with pytest.raises(StoreError, match="copy of the audit checkpoints"):
        trail.seal()
    trail.copy.rmdir()
    trail.seal()
    assert trail.copy.read_bytes().startswith(kept) and trail.verify().ok


def test_the_key_is_made_once_for_its_owner_alone(trail: Trail) -> None:
    path = signing_key_file(trail.settings)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_signing_key(trail.settings).public == load_signer(trail.settings).public
    assert b"PRIVATE" not in (audit_dir(trail.settings) / "keys.json").read_bytes()


def test_trust_follows_rotations_both_ways_and_nothing_else(trail: Trail) -> None:
    first = load_signer(trail.settings).public
    second = rotate_signing_key(trail.settings).public
    third = rotate_signing_key(trail.settings).public
    folder = audit_dir(trail.settings)
    everyone = {first.id, second.id, third.id}
    for anchor in (first, second, third):
        assert set(trusted_keys(folder, [anchor])) == everyone
    trail.write(1)
    trail.seal()
    assert trail.verify().ok and trail.verify(public_keys=[first.pem]).ok
    # A key that somebody only wrote into the list is not trusted.
    listed = json.loads((folder / "keys.json").read_text())
    listed["keys"][1]["signature"] = listed["keys"][2]["signature"]
    listed["keys"][1]["countersignature"] = listed["keys"][2]["countersignature"]
    (folder / "keys.json").write_text(json.dumps(listed))
    assert set(trusted_keys(folder, [first])) == {first.id}
    assert set(trusted_keys(folder, [third])) == {second.id, third.id}


def test_a_key_that_is_missing_or_none_is_named(trail: Trail) -> None:
    path = signing_key_file(trail.settings)
    pem = path.read_text()
    os.truncate(path, 10)
    with pytest.raises(PrerequisiteError, match="no private key"):
        load_signer(trail.settings)
    path.unlink()
    with pytest.raises(PrerequisiteError, match="cannot be read"):
        load_signer(trail.settings)
    # Where the private key is not at hand, the listed public keys verify.
    assert trail.verify().ok
    path.write_text(pem)
    assert len(Evidence.of(trail.settings).keys()) == 1


def test_rows_that_nobody_seals_are_noted(trail: Trail) -> None:
    assert trail.verify().notes == ()
    stream = new_id()
    trail.write(1, stream)
    trail.database.query(
        "update audit_event set created_at = created_at - interval '30 minutes' where stream = %s",
        stream,
    )
    trail.compute_anew(stream)
    report = trail.verify()
    assert report.ok and "not sealed since" in report.notes[0]


def test_a_checkpoint_that_is_written_while_the_trail_is_verified_is_no_loss(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    trail.write(2)
    evidence = Evidence.of(trail.settings)
    project = trail.database.project_id

    async def work(db: Database) -> verify.AuditReport:
        async def walk_and_seal(*arguments: Any) -> Any:
            # The verifier has its snapshot by now, and has not come to the checkpoints yet.
            found = await walk_chain(*arguments)
            assert len(await Sealer.open(db, trail.settings).seal_project(project)) == 1
            return found

        monkeypatch.setattr(verify, "walk_chain", walk_and_seal)
        return await verify.verify_project(db, project, evidence)

    report = trail.database.run(work)
    assert report.ok, report
    assert (report.checkpoints, report.outside, report.unsealed) == (2, 2, 2)
    monkeypatch.undo()
    assert trail.verify().checkpoints == 3


@pytest.mark.parametrize("change", ["seq = seq + 1000", "seq = seq - 1", None])
def test_a30_a_changed_note_of_what_is_sealed_is_named(trail: Trail, change: str | None) -> None:
    known = trail.rows()[-1][0]
    statement = f"update audit_sealed set {change}" if change else "delete from audit_sealed"
    trail.database.query(f"{statement} where stream = 'admin' returning 1")
    report = trail.verify()
    assert not report.ok and report.bad is not None
    assert (report.bad.stream, report.bad.seq) == ("admin", known + 1)
    assert "the note of what is sealed was changed" in report.bad.what
