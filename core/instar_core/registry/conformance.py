"""Conformance: what every registry must do with every kind, as checks that take both.

Each check makes artifacts of its own and may run on a registry that holds others. A kind's
:meth:`Kind.examples` are what is stored. Run all of them::

    for check in CHECKS:
        await check(registry, kind)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from instar_core.base import JsonValue, new_id
from instar_core.errors import (
    ConflictError,
    InstarError,
    NotFoundError,
    PermissionDenied,
    UserError,
)
from instar_core.kinds import Kind, check_content
from instar_core.registry.protocol import ALL, ANY, Actor, Change, Name, Registry
from instar_core.similarity import COMPARED_KINDS

__all__ = ["CHECKS", "Check"]

Check = Callable[[Registry, Kind], Coroutine[Any, Any, None]]
_PERSON = Change(by=Actor(kind="person", name="ada"), reason="to see", allow_similar=True)


async def creates_and_reads(registry: Registry, kind: Kind) -> None:
    """A first version is number 1 and reads as it was saved; a second creation is refused."""
    ref, (content, _) = _fresh(kind), kind.examples()
    change = _PERSON.model_copy(update={"evidence": {"runs": 3}, "description": "for the desk"})
    saved = (await registry.create(ref, content, change)).version
    shown = kind.shown(check_content(kind, content))
    _equal((saved.number, saved.name, saved.content), (1, ref.name, shown))
    for at in (1, "1", "latest"):
        found = await registry.read(ref, at)
        _equal((found.number, found.digest, found.content), (1, saved.digest, shown))
        _equal((found.by, found.reason), (change.by, change.reason))
        _equal((found.evidence, found.parents, found.label), (change.evidence, (), None))
    await _raises(ConflictError, registry.create(ref, content, change))
    _equal((await registry.read(ref)).number, 1)


async def checks_contents(registry: Registry, kind: Kind) -> None:
    """What is no content of the kind is refused, and nothing is stored."""
    ref = _fresh(kind)
    bad: list[JsonValue] = [True, {"no_such_field": {}}, "a\x00b", _deep(kind.limits.max_depth + 1)]
    bad.append("x" * (kind.limits.max_bytes + 1))
    for content in bad:
        await _raises(UserError, registry.create(ref, content, _PERSON))
        await _raises(NotFoundError, registry.read(ref))
    first, _ = kind.examples()
    await registry.create(ref, first, _PERSON)
    for content in bad:
        await _raises(UserError, registry.update(ref, content, _PERSON))
    _equal((await registry.read(ref)).number, 1)


async def names_what_is_missing(registry: Registry, kind: Kind) -> None:
    """An unknown name, version or label is not found, and the answer says what there is."""
    ref, (content, _) = _fresh(kind), kind.examples()
    await registry.create(ref, content, _PERSON)
    await registry.label(ref, "staging", 1, expected=None, change=_PERSON)
    typo = Name(ref.kind, ref.name[:-1] + "x")
    _contains(await _raises(NotFoundError, registry.read(typo)), ref.name)
    _contains(await _raises(NotFoundError, registry.read(ref, "stagin")), "staging")
    for number in (0, 2, 10**12):
        await _raises(NotFoundError, registry.read(ref, number))
        await _raises(
            NotFoundError, registry.label(ref, "staging", number, expected=ANY, change=_PERSON)
        )
    for missing in (
        registry.update(typo, content, _PERSON),
        registry.labels(typo),
        registry.archive(typo, ALL, _PERSON),
        registry.restore(typo, ALL, _PERSON),
        registry.components(typo),
        registry.copy(typo, "other", _PERSON),
    ):
        await _raises(NotFoundError, missing)


async def numbers_versions(registry: Registry, kind: Kind) -> None:
    """Parallel saves give consecutive numbers; the same content twice has one digest."""
    ref, (first, second) = _fresh(kind), kind.examples()
    one = (await registry.create(ref, first, _PERSON)).version
    many = await asyncio.gather(*(registry.update(ref, second, _PERSON) for _ in range(5)))
    _equal(sorted(saved.version.number for saved in many), [2, 3, 4, 5, 6])
    _equal(len({saved.version.digest for saved in many}), 1)
    again = (await registry.update(ref, first, _PERSON)).version
    _equal((again.number, again.digest), (7, one.digest))
    _differ(again.digest, many[0].version.digest)


async def keeps_parents(registry: Registry, kind: Kind) -> None:
    """A version's parent is the newest before it unless others are named; a merge has two."""
    ref, (first, second) = _fresh(kind), kind.examples()
    await registry.create(ref, first, _PERSON)
    await registry.update(ref, second, _PERSON)
    side = _PERSON.model_copy(update={"parents": (1,)})
    _equal((await registry.update(ref, first, side)).version.parents, (1,))
    merge = _PERSON.model_copy(update={"parents": (2, 3)})
    await registry.update(ref, second, merge)
    _equal((await registry.read(ref, 4)).parents, (2, 3))
    _equal((await registry.read(ref, 2)).parents, (1,))
    unknown = _PERSON.model_copy(update={"parents": (99,)})
    await _raises(NotFoundError, registry.update(ref, first, unknown))
    _equal((await registry.read(ref)).number, 4)


async def lists(registry: Registry, kind: Kind) -> None:
    """Lists are filtered by kind and words, and paged without gap or repetition."""
    content, _ = kind.examples()
    word = f"w{new_id()[-12:]}"
    change = _PERSON.model_copy(update={"description": f"{word} something"})
    refs = [_fresh(kind) for _ in range(3)]
    for ref in refs:
        await registry.create(ref, content, change)
    found = await registry.list(kind=kind.name, q=word)
    _equal({item.name for item in found.items}, {ref.name for ref in refs})
    _equal({item.kind for item in found.items}, {kind.name})
    seen: list[str] = []
    after: str | None = None
    while True:
        page = await registry.list(kind=kind.name, q=word, limit=2, after=after)
        seen += [item.name for item in page.items]
        after = page.next
        if after is None:
            break
    _equal(sorted(seen), sorted(ref.name for ref in refs))
    _equal((await registry.list(kind=kind.name, q=f"{word} absent{word}")).items, ())


async def describes(registry: Registry, kind: Kind) -> None:
    """Description and tags change without a version, and with them the ETag of what is read."""
    ref, (content, _) = _fresh(kind), kind.examples()
    await registry.create(ref, content, _PERSON)
    before = await registry.read(ref)
    state = await registry.describe(ref, _PERSON, description="new words", tags=("a", "b", "a"))
    _equal((state.description, state.tags, state.last_version), ("new words", ("a", "b"), 1))
    _differ((await registry.read(ref)).etag, before.etag)
    kept = await registry.describe(ref, _PERSON, tags=())
    _equal((kept.description, kept.tags), ("new words", ()))
    _differ(kept.etag, state.etag)


async def compares(registry: Registry, kind: Kind) -> None:
    """Equal versions differ in nothing; others somewhere, and in the same places both ways."""
    ref, (first, second) = _fresh(kind), kind.examples()
    await registry.create(ref, first, _PERSON)
    await registry.update(ref, second, _PERSON)
    await registry.update(ref, first, _PERSON)
    _equal(await registry.diff(ref, 1, 3), ())
    places = await registry.diff(ref, 1, 2)
    _true(bool(places), "two different versions are said to be equal")
    _equal(sorted(await registry.diff(ref, 2, "latest")), sorted(places))


async def moves_labels(registry: Registry, kind: Kind) -> None:
    """Labels move by compare-and-swap, one of two wins, and every move changes their ETag."""
    ref = await _two_versions(registry, kind)
    made = await registry.label(ref, "staging", 1, expected=None, change=_PERSON)
    _equal((made.number, made.protected), (1, False))
    at_one = await registry.read(ref, "staging")
    _equal((at_one.number, at_one.label), (1, "staging"))
    await _raises(ConflictError, registry.label(ref, "staging", 2, expected=None, change=_PERSON))
    await _raises(ConflictError, registry.label(ref, "staging", 2, expected=2, change=_PERSON))
    moves = [registry.label(ref, "staging", 2, expected=1, change=_PERSON) for _ in range(2)]
    ends = await asyncio.gather(*moves, return_exceptions=True)
    _equal(sum(isinstance(end, ConflictError) for end in ends), 1)
    now = (await registry.labels(ref))["staging"]
    _equal(now.number, 2)
    _differ(now.etag, made.etag)
    at_two = await registry.read(ref, "staging")
    _equal(at_two.number, 2)
    _differ(at_two.etag, at_one.etag)
    history = await registry.history(ref, "staging")
    _equal([(event.before, event.after) for event in history], [(None, 1), (1, 2)])
    _equal(history[0].by, _PERSON.by)


async def refuses_odd_labels(registry: Registry, kind: Kind) -> None:
    """No label consists of digits, is ``latest``, or holds odd characters."""
    ref = await _two_versions(registry, kind)
    for odd in ("3", "0", "latest", "", "Big", "a b", "a/b", "x" * 64, "ä"):
        await _raises(UserError, registry.label(ref, odd, 1, expected=ANY, change=_PERSON))
    _equal(await registry.labels(ref), {})


async def protects_labels(registry: Registry, kind: Kind) -> None:
    """``production`` is made by whoever comes first, and moved by no operator after that."""
    ref = await _two_versions(registry, kind)
    made = await registry.label(ref, "production", 1, expected=None, change=_PERSON)
    _true(made.protected, "'production' is not protected")
    await _raises(
        PermissionDenied, registry.label(ref, "production", 2, expected=1, change=_PERSON)
    )
    _equal((await registry.read(ref, "production")).number, 1)


async def rolls_back(registry: Registry, kind: Kind) -> None:
    """A label goes back to what it named before its last move; without such a move it does not."""
    ref = await _two_versions(registry, kind)
    await _raises(NotFoundError, registry.roll_back(ref, "staging", _PERSON))
    await registry.label(ref, "staging", 2, expected=None, change=_PERSON)
    await _raises(ConflictError, registry.roll_back(ref, "staging", _PERSON))
    await registry.label(ref, "staging", 1, expected=2, change=_PERSON)
    _equal((await registry.roll_back(ref, "staging", _PERSON)).number, 2)
    _equal((await registry.read(ref, "staging")).number, 2)
    _equal(len(await registry.history(ref, "staging")), 3)


async def archives_versions(registry: Registry, kind: Kind) -> None:
    """An archived version is not found, its number is not used again, and it comes back."""
    ref = await _two_versions(registry, kind)
    before = await registry.read(ref, 1)
    await registry.archive(ref, 2, _PERSON)
    await _raises(NotFoundError, registry.read(ref, 2))
    left = await registry.read(ref)
    _equal(left.number, 1)
    _differ(left.etag, before.etag)
    content, _ = kind.examples()
    _equal((await registry.update(ref, content, _PERSON)).version.number, 3)
    await registry.restore(ref, 2, _PERSON)
    _equal((await registry.read(ref, 2)).number, 2)
    await registry.label(ref, "staging", 2, expected=None, change=_PERSON)
    await _raises(ConflictError, registry.archive(ref, 2, _PERSON))
    _equal((await registry.read(ref, "staging")).number, 2)


async def archives_artifacts(registry: Registry, kind: Kind) -> None:
    """An archived artifact is neither read, listed nor written, keeps its name, and comes back."""
    ref = await _two_versions(registry, kind)
    content, _ = kind.examples()
    await registry.label(ref, "staging", 1, expected=None, change=_PERSON)
    await _raises(ConflictError, registry.archive(ref, ALL, _PERSON))
    other = Name(ref.kind, f"{ref.name}b")
    await registry.copy(ref, other.name, _PERSON, at=2)
    await registry.archive(other, ALL, _PERSON)
    for gone in (
        registry.read(other),
        registry.update(other, content, _PERSON),
        registry.labels(other),
    ):
        await _raises(UserError, gone)
    listed = await registry.list(kind=kind.name, limit=200)
    _true(other.name not in [item.name for item in listed.items], "an archived one is listed")
    await _raises(ConflictError, registry.create(other, content, _PERSON))
    await registry.restore(other, ALL, _PERSON)
    _equal((await registry.read(other)).number, 1)


async def copies(registry: Registry, kind: Kind) -> None:
    """A copy is an artifact of its own with the content of the version that was asked for."""
    ref = await _two_versions(registry, kind)
    saved = await registry.copy(ref, f"{ref.name}c", _PERSON, at=1)
    _equal((saved.version.name, saved.version.number), (f"{ref.name}c", 1))
    _equal(saved.version.content, (await registry.read(ref, 1)).content)
    await _raises(ConflictError, registry.copy(ref, f"{ref.name}c", _PERSON))
    _equal((await registry.read(ref)).number, 2)


async def lists_a_contract(registry: Registry, kind: Kind) -> None:
    """The contract names what there is with its version; beyond its budget it says what is cut."""
    ref = await _two_versions(registry, kind)
    full = await registry.contract(kind=kind.name, budget_tokens=1_000_000)
    mine = [entry for entry in full.entries if entry.name == ref.name]
    _equal([entry.version for entry in mine], [2])
    line = mine[0].line.splitlines()[0]
    _contains(full.text, line)
    _contains(full.text, "version 2")
    none = await registry.contract(kind=kind.name, budget_tokens=0)
    _equal((none.entries, len(none.cut)), ((), len(full.entries)))
    _contains(none.text, "not listed")


async def names_components(registry: Registry, kind: Kind) -> None:
    """Trainable components are those of the kind, each named once, with owner and budget."""
    ref, (content, _) = _fresh(kind), kind.examples()
    await registry.create(ref, content, _PERSON)
    found = await registry.components(ref, 1)
    _equal(found, kind.components(check_content(kind, content)))
    names = [one.name for one in found]
    _equal(sorted(names), sorted(set(names)))
    for one in found:
        _true(one.owner in ("person", "job") and one.tokens >= 0, f"{one} is odd")


async def notices_near_duplicates(registry: Registry, kind: Kind) -> None:
    """What resembles an existing thing is told to people and refused to runs."""
    ref, (_, content) = _fresh(kind), kind.examples()
    words = kind.search_text(check_content(kind, content))
    await registry.create(ref, content, _PERSON)
    if not words.strip() or kind.name not in COMPARED_KINDS:
        return
    told = await registry.create(
        _fresh(kind), content, _PERSON.model_copy(update={"allow_similar": False})
    )
    _true(any("improve" in notice.lower() for notice in told.notices), "nothing was said")
    silent = await registry.create(_fresh(kind), content, _PERSON)
    _true(not any("resembles" in notice for notice in silent.notices), "it was said although")
    run = Change(by=Actor(kind="run", name=new_id()), allow_similar=True)
    refused = _fresh(kind)
    await _raises(ConflictError, registry.create(refused, content, run))
    await _raises(NotFoundError, registry.read(refused))


CHECKS: tuple[Check, ...] = (
    creates_and_reads,
    checks_contents,
    names_what_is_missing,
    numbers_versions,
    keeps_parents,
    lists,
    describes,
    compares,
    moves_labels,
    refuses_odd_labels,
    protects_labels,
    rolls_back,
    archives_versions,
    archives_artifacts,
    copies,
    lists_a_contract,
    names_components,
    notices_near_duplicates,
)


def _fresh(kind: Kind) -> Name:
    """A name that nothing has, and that looks like no other."""
    return Name(kind.name, f"t{new_id().replace('-', '')}")


async def _two_versions(registry: Registry, kind: Kind) -> Name:
    ref, (first, second) = _fresh(kind), kind.examples()
    await registry.create(ref, first, _PERSON)
    await registry.update(ref, second, _PERSON)
    return ref


def _deep(levels: int) -> JsonValue:
    value: JsonValue = "x"
    for _ in range(levels):
        value = [value]
    return value


async def _raises(error: type[InstarError], doing: Awaitable[object]) -> str:
    """The words of the error that an awaitable must raise."""
    try:
        found = await doing
    except error as raised:
        return str(raised)
    raise AssertionError(f"{error.__name__} was not raised; the answer was {found!r}")


def _equal(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")


def _differ(one: object, other: object) -> None:
    if one == other:
        raise AssertionError(f"both are {one!r}")


def _contains(text: str, part: str) -> None:
    if part not in text:
        raise AssertionError(f"{part!r} is not in {text!r}")


def _true(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
