"""Attacks on the audit trail, as superuser in the database: each is seen, and the right row named.

``test_a30_…``: attack A30 of the acceptance list.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from instar.audit.keys import ensure_signing_key
from instar.audit.outside import parse_lines
from instar.settings import AuditSettings, Settings
from instar_core.base import new_id

if TYPE_CHECKING:
    from tests.integration.audit.conftest import Trail
else:
    Trail = Any

pytestmark = pytest.mark.slow

ADMIN = "admin"


def _expect(trail: Trail, seq: int, identity: str | None, *words: str) -> None:
    report = trail.verify()
    assert not report.ok and report.bad is not None
    assert (report.bad.stream, report.bad.seq) == (ADMIN, seq), report.bad
    assert report.bad.id == identity
    for word in words:
        assert word in report.bad.what


def test_an_untouched_trail_holds(trail: Trail) -> None:
    report = trail.verify()
    assert report.ok and report.bad is None and report.more == ()
    assert (report.rows, report.streams, report.unsealed) == (14, 2, 0)
    assert (report.checkpoints, report.outside) == (2, 2)
    trail.write(3)
    assert trail.verify().unsealed == 3


def test_a30_a_deleted_row_is_named(trail: Trail) -> None:
    trail.database.query("delete from audit_event where seq = 4 and stream = 'admin'")
    _expect(trail, 4, None, "row 4 is missing")


def test_a30_a_deleted_row_is_named_though_the_rest_was_renumbered(trail: Trail) -> None:
    trail.database.query("delete from audit_event where seq = 4 and stream = 'admin'")
    trail.database.query("update audit_event set seq = seq - 1 where seq > 4 and stream = 'admin'")
    _expect(trail, 4, None, "row 4 was taken out")


@pytest.mark.parametrize(
    "change",
    [
        "subject = 'thing/else'",
        "actor = 'somebody'",
        "action = 'test.other'",
        "details = '{\"step\": 7}'",
        "details = null",
        "created_at = created_at + interval '1 microsecond'",
        "created_at = 'infinity'",
        "id = gen_random_uuid()",
        "hash = repeat('0', 64)",
        "format = 9",
        "details = cast(repeat('[', 3000) || repeat(']', 3000) as json)",
    ],
)
def test_a30_a_changed_row_is_named(trail: Trail, change: str) -> None:
    trail.database.query(f"update audit_event set {change} where seq = 5 and stream = 'admin'")
    _expect(trail, 5, trail.id_of(5))


def test_a30_a_changed_row_whose_link_was_computed_anew_is_named(trail: Trail) -> None:
    before = dict(trail.database.query("select seq, hash from audit_event where stream = 'admin'"))
    head = trail.database.query("select seq, hash, at from audit_head where stream = 'admin'")
    trail.database.query("update audit_event set subject = 'x' where seq = 5 and stream = 'admin'")
    trail.compute_anew()
    # Only row 5's own link stays new; those after it are put back.
    for seq, link in before.items():
        if seq != 5:
            trail.database.query(
                "update audit_event set hash = %s, previous_hash = %s where seq = %s "
                "and stream = 'admin'",
                *(link, before.get(seq - 1, ""), seq),
            )
    trail.database.query(
        "update audit_head set seq = %s, hash = %s, at = %s where stream = 'admin'", *head[0]
    )
    _expect(trail, 5, trail.id_of(5), "computed anew")


def test_a30_two_rows_that_changed_places_are_named(trail: Trail) -> None:
    fifth, sixth = trail.id_of(5), trail.id_of(6)
    trail.database.query("update audit_event set seq = 6 where id = %s", fifth)
    trail.database.query("update audit_event set seq = 5 where id = %s", sixth)
    _expect(trail, 5, sixth, "reordered", "row 6")


_INSERT = (
    "insert into audit_event (id, project_id, stream, seq, actor_kind, actor, action, subject,"
    " details, previous_hash, hash, format, created_at) select %s, project_id, stream, %s,"
    " actor_kind, actor, action, 'smuggled', details, {previous}, hash, 2, created_at"
    " from audit_event where seq = 5 and stream = 'admin'"
)


def test_a30_an_inserted_row_is_named(trail: Trail) -> None:
    identity = new_id()
    trail.database.query(_INSERT.format(previous="previous_hash"), identity, 5)
    _expect(trail, 5, identity, "inserted")


def test_a30_an_inserted_row_is_named_though_the_rest_was_renumbered(trail: Trail) -> None:
    trail.database.query("update audit_event set seq = seq + 1 where seq > 5 and stream = 'admin'")
    identity = new_id()
    trail.database.query(_INSERT.format(previous="hash"), identity, 6)
    _link_alone(trail, 6)
    trail.database.query("update audit_head set seq = seq + 1 where stream = 'admin'")
    _expect(trail, 6, identity)


def _link_alone(trail: Trail, seq: int) -> None:
    """Computes one row's own link anew."""
    from instar.store.audit import link_of, stream_lines
    from instar.store.session import Database

    async def work(db: Database) -> None:
        async with db.transaction(trail.database.project_id) as session:
            async for line in stream_lines(session, trail.database.project_id, ADMIN):
                if line.seq == seq:
                    link = link_of(line, trail.database.project_id)
                    trail.database.query(
                        "update audit_event set hash = %s where id = %s", link, line.id
                    )

    trail.database.run(work)


def test_a30_a_row_put_after_the_end_is_named(trail: Trail) -> None:
    identity = new_id()
    trail.database.query(
        _INSERT.format(previous="(select hash from audit_head where stream = 'admin')").replace(
            "audit_event where seq = 5", "audit_event where seq = 10"
        ),
        *(identity, 11),
    )
    _link_alone(trail, 11)
    _expect(trail, 11, identity, "beyond the stream's head")


def test_a30_a_lost_tail_is_seen_by_the_head(trail: Trail) -> None:
    trail.database.query("delete from audit_event where seq > 7 and stream = 'admin'")
    _expect(trail, 8, None, "row 8 is missing")


def test_a30_a_lost_tail_is_seen_though_the_head_was_put_right(trail: Trail) -> None:
    trail.database.query("delete from audit_event where seq > 7 and stream = 'admin'")
    trail.compute_anew()
    _expect(trail, 8, None, "row 8 is missing", "checkpoint 2 sealed rows up to 10")


def test_a30_a_lost_stream_is_seen(trail: Trail) -> None:
    trail.database.query("delete from audit_event where stream = %s", trail.run)
    trail.database.query("delete from audit_head where stream = %s", trail.run)
    report = trail.verify()
    assert report.bad is not None and (report.bad.stream, report.bad.seq) == (trail.run, 1)


_TABLES = ("audit_event", "audit_head", "audit_checkpoint", "audit_sealed")


def _backup(trail: Trail) -> None:
    for table in _TABLES:
        trail.database.query(f"create table public.old_{table} as table {table}")


def _restore(trail: Trail) -> None:
    for table in _TABLES:
        trail.database.query(f"delete from {table}")
        trail.database.query(f"insert into {table} select * from public.old_{table}")


def test_a30_a_restored_old_backup_is_seen_by_the_copy_outside(trail: Trail) -> None:
    _backup(trail)
    trail.write(3)
    assert trail.seal() == 1
    _restore(trail)
    _expect(trail, 11, None, "checkpoint 3 in the outside copy sealed")
    report = trail.verify()
    assert any("older backup" in other.what for other in report.more)


def test_a30_a_restored_old_backup_is_seen_though_work_went_on(trail: Trail) -> None:
    from instar_core.errors import PrerequisiteError

    _backup(trail)
    trail.write(3)
    assert trail.seal() == 1
    _restore(trail)
    trail.write(4)
    _expect(trail, 11, trail.id_of(11), "checkpoint 3 in the outside copy sealed another link")
    # And nothing is sealed over it before a person has said that it was meant.
    with pytest.raises(PrerequisiteError, match="was set back"):
        trail.seal()


def test_a30_a_restored_backup_that_was_meant_is_accepted_by_a_person(trail: Trail) -> None:
    from instar.audit.writer import Sealer
    from instar.store.audit import Author

    _backup(trail)
    trail.write(3)
    trail.seal()
    _restore(trail)

    async def accept(db: Any) -> Any:
        sealer = Sealer.open(db, trail.settings)
        by = Author("person", "key:1")
        return await sealer.accept_restore(trail.database.project_id, by, "disk lost")

    aside = trail.database.run(accept)
    assert aside.exists() and "until-3" in aside.name
    assert trail.verify().ok
    assert trail.database.query(
        "select subject, details ->> 'reason' from audit_event where action like 'audit.%%'"
    ) == [("checkpoint/3", "disk lost")]
    # What was set aside still tells what was lost.
    report = trail.verify(given=parse_lines(aside.read_bytes().splitlines()))
    assert not report.ok and report.bad is not None and report.bad.seq == 11


@pytest.mark.parametrize("seq", [2, 6, 7, 10])
def test_a30_back_dating_with_a_chain_computed_anew_is_named(trail: Trail, seq: int) -> None:
    trail.database.query(
        "update audit_event set created_at = (select created_at from audit_event where seq = 1 "
        "and stream = 'admin') where seq <= %s and stream = 'admin'",
        seq,
    )
    trail.compute_anew()
    # Row 1 keeps its moment and its link; row 2 is the first that was dated back.
    _expect(trail, 2, trail.id_of(2), "computed anew", "checkpoint 1 sealed another link")


def test_a30_back_dating_of_one_row_with_a_chain_computed_anew_is_named(trail: Trail) -> None:
    trail.database.query(
        "update audit_event set created_at = created_at - interval '1 microsecond' where seq = 9 "
        "and stream = 'admin'"
    )
    trail.compute_anew()
    _expect(trail, 9, trail.id_of(9), "checkpoint 2 sealed another link")


def test_a30_a_moment_before_its_predecessor_is_named(trail: Trail) -> None:
    trail.write(2)
    trail.database.query(
        "update audit_event set created_at = created_at - interval '1 day' where seq = 12 "
        "and stream = 'admin'"
    )
    trail.compute_anew()
    _expect(trail, 12, trail.id_of(12), "back-dated")


def test_a30_a_new_stream_dated_before_the_last_checkpoint_is_named(trail: Trail) -> None:
    stream = new_id()
    trail.write(1, stream)
    trail.database.query(
        "update audit_event set created_at = created_at - interval '30 days' where stream = %s",
        stream,
    )
    trail.compute_anew(stream)
    report = trail.verify()
    assert report.bad is not None and (report.bad.stream, report.bad.seq) == (stream, 1)
    assert "back-dated" in report.bad.what


def test_a30_the_clock_set_back_dates_nothing_back(trail: Trail) -> None:
    # A head and a checkpoint of tomorrow: as if the clock had been a day ahead when they were made.
    trail.database.query(
        "update audit_checkpoint set created_at = created_at + interval '1 day' where seq = 2"
    )
    stream = new_id()
    trail.write(1, stream)
    moments = trail.database.query(
        "select e.created_at - c.created_at from audit_event e, audit_checkpoint c "
        "where e.stream = %s and c.seq = 2",
        stream,
    )
    assert moments == [(timedelta(0),)]


def test_a30_a_row_of_another_stream_is_named(trail: Trail) -> None:
    trail.database.query(
        "update audit_event set stream = 'admin', seq = 11 where seq = 4 and stream = %s",
        trail.run,
    )
    report = trail.verify()
    assert report.bad is not None and (report.bad.stream, report.bad.seq) == (ADMIN, 11)
    trail.database.query(
        "update audit_event set previous_hash = (select hash from audit_head "
        "where stream = 'admin') where seq = 11"
    )
    assert trail.verify().bad is not None


def test_a30_a_downgraded_format_is_named(trail: Trail) -> None:
    trail.database.query("update audit_event set format = 1 where seq = 5 and stream = 'admin'")
    _expect(trail, 5, trail.id_of(5), "downgraded")
    trail.compute_anew()
    _expect(trail, 5, trail.id_of(5))


@pytest.mark.parametrize(
    "change",
    [
        "hash = repeat('1', 64)",
        "seq = 9",
        "seq = 11",
        "at = at + interval '1 second'",
    ],
)
def test_a30_a_changed_head_is_seen(trail: Trail, change: str) -> None:
    trail.database.query(f"update audit_head set {change} where stream = 'admin'")
    report = trail.verify()
    assert report.bad is not None and report.bad.stream == ADMIN and "head" in report.bad.what


def test_a30_a_deleted_head_is_seen(trail: Trail) -> None:
    trail.database.query("delete from audit_head where stream = 'admin'")
    _expect(trail, 10, trail.id_of(10), "head is missing")


def _checkpoint_problem(trail: Trail, **more: Any) -> tuple[int | None, str]:
    report = trail.verify(**more)
    assert not report.ok and report.bad is not None
    assert report.bad.stream == "checkpoints", report.bad
    return report.bad.seq, report.bad.what


def test_a30_a_deleted_checkpoint_is_seen(trail: Trail) -> None:
    trail.database.query("delete from audit_checkpoint where seq = 2")
    seq, what = _checkpoint_problem(trail)
    assert seq == 2 and "the database lacks it" in what


def test_a30_a_changed_checkpoint_is_seen(trail: Trail) -> None:
    trail.database.query(
        "update audit_checkpoint set document = cast(replace(cast(document as text), "
        "'\"rows\":8', '\"rows\":7') as json) where seq = 1"
    )
    seq, what = _checkpoint_problem(trail)
    assert seq == 1 and "does not match its hash" in what


def test_a30_a_checkpoint_signed_by_another_key_is_seen(trail: Trail, tmp_path: Path) -> None:
    from instar.audit.checkpoint import seal
    from instar.audit.writer import as_checkpoint
    from instar.store.checkpoints import StoredCheckpoint

    other = Settings(data_dir=tmp_path / "x", audit=AuditSettings(dir=tmp_path / "y"))
    thief = ensure_signing_key(other)
    row = trail.database.query(
        "select document, hash, key_id, signature from audit_checkpoint where seq = 2"
    )[0]
    forged = seal(as_checkpoint(StoredCheckpoint(*row)).document, thief)
    change = "update audit_checkpoint set signature = %s, key_id = %s where seq = 2"
    trail.database.query(change, forged.signature, forged.key_id)
    seq, what = _checkpoint_problem(trail)
    assert seq == 2 and "not trusted" in what
    trail.database.query(change, forged.signature, row[2])
    seq, what = _checkpoint_problem(trail)
    assert seq == 2 and "forged" in what


def test_a30_a_checkpoint_of_no_form_is_seen(trail: Trail) -> None:
    trail.database.query("update audit_checkpoint set document = '[1]' where seq = 1")
    seq, what = _checkpoint_problem(trail)
    assert seq == 1 and "form" in what


def test_a30_a_cut_copy_is_seen_once_it_should_have_been_written(trail: Trail) -> None:
    from instar.audit import fold

    lines = trail.copy.read_bytes().splitlines(keepends=True)
    trail.copy.write_bytes(lines[0])
    # The last checkpoint may be seconds old: its copy can still be on its way.
    assert trail.verify().ok
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(fold, "_LAG", timedelta(0))
        seq, what = _checkpoint_problem(trail)
    assert seq == 2 and "the copy was cut" in what
    trail.copy.write_bytes(lines[1])
    seq, what = _checkpoint_problem(trail)
    assert seq == 1 and "lacks it" in what


def test_a30_a_forged_line_of_the_copy_is_seen(trail: Trail) -> None:
    lines = trail.copy.read_bytes().splitlines()
    document = json.loads(lines[1])
    document["document"]["rows"] = 15
    trail.copy.write_bytes(lines[0] + b"\n" + json.dumps(document).encode() + b"\n")
    seq, what = _checkpoint_problem(trail)
    assert seq == 2 and "in the outside copy" in what


def test_a30_a_copy_kept_elsewhere_shows_what_both_others_lost(trail: Trail) -> None:
    _backup(trail)
    old = trail.copy.read_bytes()
    trail.write(3)
    trail.seal()
    elsewhere = trail.copy.read_bytes()
    _restore(trail)
    trail.copy.write_bytes(old)
    # Database and copy were set back together: nothing here can tell.
    assert trail.verify().ok
    kept = list(parse_lines(elsewhere.splitlines()))[-1:]
    report = trail.verify(given=kept)
    assert report.bad is not None and (report.bad.stream, report.bad.seq) == (ADMIN, 11)
