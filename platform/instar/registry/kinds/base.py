"""Base of the kinds: what most of them do alike, over a pydantic model of their content."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel

from instar_core.base import JsonValue, short
from instar_core.errors import InvalidContent
from instar_core.kinds import (
    Form,
    KindLimits,
    TrainableComponent,
    estimate_tokens,
    parse_content,
)

__all__ = ["BaseKind", "ModelKind", "only_file", "parse_json_file", "pretty_json", "texts_in"]

M = TypeVar("M", bound=BaseModel)


class BaseKind:
    """Defaults: a structure in one JSON file, found by every text in it, listed in one line.

    Subclasses set the class attributes and override what is special about them. ``budget_tokens``
    is the size that evolution keeps a content within; 0 means that nothing in it is trained.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    form: ClassVar[Form] = "json"
    limits: ClassVar[KindLimits] = KindLimits()
    budget_tokens: ClassVar[int] = 0

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two different contents of this kind."""
        raise NotImplementedError(f"{type(self).__name__} has no examples")

    def check(self, content: JsonValue) -> JsonValue:
        """The canonical form of a content."""
        raise NotImplementedError(f"{type(self).__name__} checks nothing")

    def shown(self, content: JsonValue) -> JsonValue:
        """The content: most kinds hold nothing that must not come out."""
        return content

    def listing(self, name: str, description: str, content: JsonValue) -> str:
        """Name and description in one line."""
        words = " ".join((description or self.summary(content)).split())
        return f"{name}: {short(words, 300)}" if words else name

    def summary(self, content: JsonValue) -> str:
        """A description made from the content, where a person wrote none."""
        return ""

    def search_text(self, content: JsonValue) -> str:
        """Every text in the content."""
        return " ".join(texts_in(content))

    def problems(self, name: str, content: JsonValue) -> tuple[str, ...]:
        """Nothing: the check is strict."""
        return ()

    def trained_text(self, content: JsonValue) -> str:
        """The text whose length the budget bounds."""
        return self.search_text(content)

    def components(self, content: JsonValue) -> tuple[TrainableComponent, ...]:
        """The content as one trainable component, where the kind has a budget."""
        if not self.budget_tokens:
            return ()
        tokens = estimate_tokens(self.trained_text(content))
        return (
            TrainableComponent(
                name="content", kind=self.name, tokens=tokens, budget_tokens=self.budget_tokens
            ),
        )

    def files(self, content: JsonValue) -> dict[str, bytes]:
        """One JSON file named after the kind."""
        return {f"{self.name}.json": pretty_json(content)}

    def read_files(self, files: Mapping[str, bytes]) -> JsonValue:
        """The content of that file, checked."""
        path = only_file(files, f"{self.name}.json")
        return self.check(parse_json_file(path, files[path]))


class ModelKind(BaseKind, Generic[M]):
    """A kind whose content is a pydantic model; its canonical form is the model's full dump."""

    model: type[M]

    def parse(self, content: JsonValue) -> M:
        """The content as its model.

        Raises:
            InvalidContent: If it does not fit.
        """
        return parse_content(self.model, content, self.name.replace("_", " "))

    def check(self, content: JsonValue) -> JsonValue:
        """The canonical form: every field spelled out."""
        dumped: JsonValue = self.parse(content).model_dump(mode="json")
        return dumped


def pretty_json(value: JsonValue) -> bytes:
    """JSON for people: indented, keys sorted, a newline at the end; equal values, equal bytes."""
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True, allow_nan=False)
    return f"{text}\n".encode()


def parse_json_file(path: str, data: bytes) -> JsonValue:
    """The JSON value in a file.

    Raises:
        InvalidContent: If it is no UTF-8 or no JSON; names the file and the place.
    """
    try:
        value: JsonValue = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidContent(
            f"{path!r} is no valid UTF-8 (byte {error.start}).", remedy="Save it as UTF-8."
        ) from error
    except json.JSONDecodeError as error:
        raise InvalidContent(
            f"{path!r} is no valid JSON: {error.msg} (line {error.lineno}, column {error.colno}).",
            remedy="Correct it and read it again.",
        ) from error
    except RecursionError as error:
        raise InvalidContent(f"{path!r} is nested too deeply to be read.") from error
    return value


def only_file(files: Mapping[str, bytes], wanted: str) -> str:
    """The path of the one file that is needed.

    Raises:
        InvalidContent: If it is not there, or others are; names them.
    """
    others = sorted(set(files) - {wanted})
    if wanted not in files or others:
        raise InvalidContent(
            f"expected the file {wanted!r} and found {short(', '.join(sorted(files)) or 'none')}.",
            remedy=f"Give {wanted!r} alone.",
        )
    return wanted


def texts_in(content: JsonValue) -> Iterator[str]:
    """Every text in a value, keys of objects left out, in the order of the value."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))
