"""Kinds: what an artifact can be, as one protocol that every kind of artifact answers to.

A kind checks a content, says how it is listed, searched, compared and written to files, and which
parts of it may be trained. The registry's verbs know kinds only by this protocol, so a package can
add one; ``instar.registry.kinds`` has the built-in fourteen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Literal, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from instar_core.base import Frozen, JsonValue, canonical_json, short
from instar_core.errors import InvalidContent

__all__ = [
    "Form",
    "Kind",
    "KindLimits",
    "TrainableComponent",
    "check_content",
    "did_you_mean",
    "estimate_tokens",
    "nearest",
    "parse_content",
]

Form = Literal["text", "front_matter", "tree", "json"]
"""How contents of a kind are compared and merged: by words, by header and body, file by file, or
place by place."""

M = TypeVar("M", bound=BaseModel)
_BYTES_PER_TOKEN = 4


class KindLimits(Frozen):
    """Bounds of one content: bytes of its canonical form, and levels of nesting."""

    max_bytes: int = 1024 * 1024
    max_depth: int = 64


class TrainableComponent(Frozen):
    """One part of an artifact that evolution may change, with its owner and its size budget."""

    name: str
    kind: str
    owner: Literal["person", "job"] = "person"
    trainable: bool = True
    tokens: int = 0
    budget_tokens: int | None = None


class Kind(Protocol):
    """One kind of artifact. Implementations hold no state: one instance serves everybody."""

    @property
    def name(self) -> str:
        """The kind's name: lower-case letters and ``_``."""
        ...

    @property
    def title(self) -> str:
        """What a thing of this kind is, in a few words."""
        ...

    @property
    def form(self) -> Form:
        """How contents are compared and merged."""
        ...

    @property
    def limits(self) -> KindLimits:
        """Bounds of a content."""
        ...

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two different contents of this kind: for people to start from, and for tests."""
        ...

    def check(self, content: JsonValue) -> JsonValue:
        """The canonical form of a content; checking it again changes nothing.

        Raises:
            InvalidContent: If it is no content of this kind; names the place and the remedy.
        """
        ...

    def shown(self, content: JsonValue) -> JsonValue:
        """What a reader is given: the content, without what must never come out (sealed tasks)."""
        ...

    def listing(self, name: str, description: str, content: JsonValue) -> str:
        """What an agent's catalogue says about it: one line, or a few."""
        ...

    def search_text(self, content: JsonValue) -> str:
        """The words by which it is found."""
        ...

    def problems(self, name: str, content: JsonValue) -> tuple[str, ...]:
        """What a strict reader would object to in a content that :meth:`check` accepts; each in
        words. Empty for kinds whose check is strict already."""
        ...

    def components(self, content: JsonValue) -> tuple[TrainableComponent, ...]:
        """Its parts that may be trained, with owners and budgets; empty where none is."""
        ...

    def files(self, content: JsonValue) -> dict[str, bytes]:
        """The content in its open format: relative path → bytes."""
        ...

    def read_files(self, files: Mapping[str, bytes]) -> JsonValue:
        """The content that :meth:`files` wrote, byte for byte the same canonical form.

        Raises:
            InvalidContent: If the files hold no content of this kind.
        """
        ...


def estimate_tokens(text: str) -> int:
    """About how many tokens a text takes: one per four bytes of UTF-8, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def nearest(word: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """The known words that look most like a word, the most similar first; maybe none."""
    return get_close_matches(word[:255], sorted(set(known)), n=most, cutoff=0.55)


def did_you_mean(word: str, known: Iterable[str], *, what: str = "There are") -> str:
    """A remedy: the nearest known words, or some of those that there are."""
    names = sorted(set(known))
    close = nearest(word, names)
    if close:
        return f"Did you mean {' or '.join(repr(one) for one in close)}?"
    return f"{what}: {short(', '.join(names), 400) or 'none'}."


def check_content(kind: Kind, content: JsonValue) -> JsonValue:
    """The canonical form of a content, within the limits of its kind.

    Args:
        kind: What it shall be.
        content: What somebody sent.

    Returns:
        What :meth:`Kind.check` made of it.

    Raises:
        InvalidContent: If it is nested too deeply, holds a NUL or a lone surrogate, is too large,
            or is no content of this kind. The limit is named.
    """
    what = f"this {kind.name.replace('_', ' ')}"
    _check_shape(content, kind.limits, what)
    checked = kind.check(content)
    size = len(checked.encode() if isinstance(checked, str) else canonical_json(checked))
    if size > kind.limits.max_bytes:
        raise InvalidContent(
            f"{what} has {size:,} bytes; the limit is {kind.limits.max_bytes:,}.",
            remedy="Make it smaller, or split it into several.",
        )
    return checked


def parse_content(model: type[M], content: JsonValue, what: str) -> M:
    """A content as the model that describes its kind; unknown fields are named with the nearest.

    Raises:
        InvalidContent: If it does not fit; quotes the first place that does not.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # A misspelt field explains the missing one better than the other way round.
        first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
        where = ".".join(str(part) for part in first["loc"]) or "content"
        remedy = "Correct it and save again."
        said = str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "model_type" and not first["loc"]:
            said = f"an object of fields is needed, this is of type {type(content).__name__}"
            remedy = "Give JSON; the list of kinds (`instar artifact kinds --json`) has an example."
        elif first["type"] == "extra_forbidden":
            said = "there is no such field"
            remedy = did_you_mean(
                str(first["loc"][-1]), _fields_at(model, first["loc"][:-1]), what="Its fields"
            )
        more = error.error_count() - 1
        also = f" (and {more} more)" if more else ""
        raise InvalidContent(f"{what}: {where}: {said}{also}.", remedy=remedy) from error


def _fields_at(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """Names of the fields of the model found at a place inside another; [] where it is unclear."""
    here: type[BaseModel] = model
    for part in place:
        if isinstance(part, int) or part not in here.model_fields:
            continue
        inner = _model_in(here.model_fields[part].annotation)
        if inner is None:
            return []
        here = inner
    return list(here.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


def _check_shape(content: JsonValue, limits: KindLimits, what: str) -> None:
    """Refuses what no kind may hold, without recursion: depth is what the attacker chooses."""
    depth, size = 0, 0
    level: list[JsonValue] = [content]
    while level:
        depth += 1
        if depth > limits.max_depth:
            raise InvalidContent(
                f"{what} is nested deeper than {limits.max_depth} levels, which is the limit.",
                remedy="Flatten it.",
            )
        inner: list[JsonValue] = []
        for value in level:
            if isinstance(value, str):
                size += _check_text(value, what)
            elif isinstance(value, dict):
                size += sum(_check_text(key, what) for key in value)
                inner.extend(value.values())
            elif isinstance(value, list):
                inner.extend(value)
            elif isinstance(value, float) and (value != value or value in (_INF, -_INF)):
                raise InvalidContent(f"{what} holds {value}, which JSON cannot carry.")
        if size > limits.max_bytes:
            raise InvalidContent(
                f"{what} has more than {limits.max_bytes:,} bytes, which is the limit.",
                remedy="Make it smaller, or split it into several.",
            )
        level = inner


def _check_text(text: str, what: str) -> int:
    if "\x00" in text:
        place = text.index("\x00")
        raise InvalidContent(
            f"{what} holds a NUL character (after {short(repr(text[max(0, place - 20) : place]))})"
            ", which cannot be stored.",
            remedy="Remove it.",
        )
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidContent(
            f"{what} is no valid UTF-8 (a lone surrogate at character {error.start}).",
            remedy="Send text that is Unicode.",
        ) from error


_INF = float("inf")
