"""Audit, as laws: whatever is put into an event comes back with the same canonical bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from instar.audit.checkpoint import Document, Head, checkpoint_problem, root_of, seal
from instar.audit.keys import PublicKey, Signer, ensure_signing_key
from instar.audit.outside import OutsideCopy
from instar.settings import Settings
from instar.store.audit import AuditEntry, Author, append_audit, first_broken_link, stream_lines
from instar.store.testing import MigratedDatabase
from instar_core.base import canonical_json, new_id

# Surrogates are no text; NUL can be in JSON but not in a text column.
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=40)
_IN_JSON = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _IN_JSON
)
_JSON = st.recursive(
    _LEAF,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_IN_JSON, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.postgres
def test_any_event_comes_back_as_it_was_hashed(database: MigratedDatabase) -> None:
    project, db = database.project_id, database.open()
    loop = asyncio.new_event_loop()

    async def keep(entry: AuditEntry, by: Author) -> str | None:
        import json

        async with db.transaction(project) as session:
            await append_audit(session, project, entry, by)
            assert await first_broken_link(session, project, entry.stream) is None
            (line,) = [one async for one in stream_lines(session, project, entry.stream)]
        return None if line.details is None else canonical_json(json.loads(line.details)).decode()

    @settings(
        max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    @given(_TEXT, _TEXT, _TEXT, _JSON)
    def check(actor: str, action: str, subject: str, details: Any) -> None:
        entry = AuditEntry(action=action, subject=subject, details=details, stream=new_id())
        found = loop.run_until_complete(keep(entry, Author("person", actor)))
        wanted = None if details is None else canonical_json(details).decode()
        assert found == wanted

    try:
        check()
    finally:
        loop.run_until_complete(db.close())
        loop.close()


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    """A signing key."""
    return ensure_signing_key(Settings(data_dir=tmp_path_factory.mktemp("key")))


_HEADS = st.dictionaries(
    _IN_JSON.filter(bool),
    st.tuples(st.integers(1, 10**12), st.text("0123456789abcdef")),
    max_size=5,
)


def _document(heads: dict[str, tuple[int, str]], seq: int = 1, previous: str = "") -> Document:
    return Document(
        installation=new_id(),
        project=new_id(),
        seq=seq,
        previous=previous,
        at="2026-01-31T09:30:00.000000Z",
        rows=sum(number for number, _ in heads.values()),
        streams=len(heads),
        root=root_of(heads),
        heads=tuple(Head(stream, *head) for stream, head in heads.items()),
    )


@settings(deadline=None)
@given(heads=_HEADS, place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_signature_covers_every_bit_of_a_document(
    signer: Signer, heads: dict[str, tuple[int, str]], place: int, bit: int
) -> None:
    made = seal(_document(heads), signer)
    trusted = {signer.public.id: signer.public}
    assert checkpoint_problem(made, trusted) == ""
    raw = bytearray(bytes.fromhex(made.signature))
    raw[place % len(raw)] ^= 1 << bit
    assert "forged" in checkpoint_problem(made.model_copy(update={"signature": raw.hex()}), trusted)
    other = made.document.model_copy(update={"rows": made.document.rows + 1})
    assert "hash" in checkpoint_problem(made.model_copy(update={"document": other}), trusted)
    assert "not trusted" in checkpoint_problem(made, {})
    stranger = {signer.public.id: PublicKey(signer.public.id, bytes(32))}
    assert checkpoint_problem(made, stranger)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 3), max_size=6), torn=st.integers(0, 400))
def test_a_copy_torn_anywhere_is_made_whole_by_appending(
    signer: Signer, tmp_path_factory: pytest.TempPathFactory, sizes: list[int], torn: int
) -> None:
    copy = OutsideCopy(tmp_path_factory.mktemp("copy"), "p")
    made, previous = [], ""
    for number, size in enumerate(sizes, start=1):
        heads = {str(stream): (1, "ab") for stream in range(size)}
        made.append(seal(_document(heads, number, previous), signer))
        previous = made[-1].hash
    copy.append(made)
    if made:
        data = copy.path.read_bytes()
        copy.path.write_bytes(data[: max(0, len(data) - torn)])
    copy.append(made)
    assert [one.hash for one in copy.read()] == [one.hash for one in made]
    last = copy.last()
    assert (last.hash if last else "") == previous
    assert copy.append(made) == 0
