"""Context: the messages an agent starts from, built from its components in one place.

Practice and production come through here alike, so the form that is tested is the form that ships:
instructions and lessons become the system prompt, demonstrations become chat turns, tool
descriptions replace what servers say. The same candidate, tools and input give the same messages.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import ValidationError

from instar.models.base import Embedder
from instar.registry.kinds.lessons import render_lessons
from instar.runtime.text_tools import render_call, render_result, render_tools
from instar.runtime.tools.listing import Catalogue
from instar_core.base import content_hash
from instar_core.candidates import (
    Candidate,
    Component,
    Demonstration,
    Demonstrations,
    Lessons,
)
from instar_core.errors import UserError
from instar_core.messages import Message, Messages, ToolCall

__all__ = [
    "VectorCache",
    "build_opening",
    "choose_demonstrations",
    "render_lessons",
    "system_prompt",
    "tool_descriptions",
]

Content = TypeVar("Content", Lessons, Demonstrations)
_USED_KINDS = ("instructions", "lessons", "demonstrations", "tool_descriptions")
_MORE = "(the result was used for the next step)"


class VectorCache:
    """Unit vectors by hash of the text, so that a pool of demonstrations is embedded once.

    Args:
        embedder: What turns texts into vectors.
        limit: Most vectors kept; the least recently used goes first.
    """

    def __init__(self, embedder: Embedder, limit: int = 20_000) -> None:
        self.embedder = embedder
        self._limit = limit
        self._vectors: OrderedDict[str, list[float]] = OrderedDict()
        self._lock = asyncio.Lock()  # concurrent rollouts wait for one embedding of the pool

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors for the texts, in order; only unknown texts reach the embedder."""
        async with self._lock:
            return await self._embed(texts)

    async def _embed(self, texts: Sequence[str]) -> list[list[float]]:
        keys = [content_hash([self.embedder.digest, text]) for text in texts]
        unknown = {
            key: text for key, text in zip(keys, texts, strict=True) if key not in self._vectors
        }
        found = dict(
            zip(unknown, await self.embedder.embed(list(unknown.values())), strict=True)
            if unknown
            else ()
        )
        vectors = [found[key] if key in found else self._vectors[key] for key in keys]
        for key, vector in zip(keys, vectors, strict=True):
            self._vectors[key] = vector
            self._vectors.move_to_end(key)
        while len(self._vectors) > self._limit:
            self._vectors.popitem(last=False)
        return vectors


async def build_opening(
    candidate: Candidate,
    conversation: Messages,
    catalogue: Catalogue,
    vectors: VectorCache | None = None,
) -> Messages:
    """The messages before the agent's first reply.

    Args:
        candidate: The agent version.
        conversation: What was said so far; its last user turn is the input that demonstrations are
            matched with. System turns in it are appended to the agent's own system prompt.
        catalogue: The tools that the agent is offered.
        vectors: Needed where demonstrations are retrieved by similarity.

    Raises:
        UserError: If a component cannot be read, is of a kind this runtime does not use, or needs
            an embedder that is not there.
    """
    _refuse_unused(candidate)
    query = next((turn.content for turn in reversed(conversation) if turn.role == "user"), "")
    asked = [turn.content for turn in conversation if turn.role == "system"]
    system = system_prompt(candidate, catalogue, asked)
    opening = [Message(role="system", content=system)] if system else []
    for name, component in candidate.components.items():
        if component.kind == "demonstrations":
            content = _read(Demonstrations, name, component)
            native = candidate.harness.tool_protocol == "native"
            for shown in await choose_demonstrations(content, query, vectors):
                opening.extend(_turns(shown, catalogue, native=native))
    opening.extend(turn for turn in conversation if turn.role != "system")
    return tuple(opening)


def system_prompt(candidate: Candidate, catalogue: Catalogue, asked: Sequence[str] = ()) -> str:
    """Instructions, lessons, the tools of the text protocol, then what the caller asked for."""
    parts: list[str] = []
    for name, component in candidate.components.items():
        if component.kind == "instructions":
            if not isinstance(component.content, str):
                raise UserError(f"Component {name!r} of kind 'instructions' must be a text.")
            parts.append(component.content)
    for name, component in candidate.components.items():
        if component.kind == "lessons":
            parts.append(render_lessons(_read(Lessons, name, component)))
    if candidate.harness.tool_protocol == "text" and catalogue.entries:
        parts.append(render_tools(catalogue.definitions))
    parts.extend(asked)
    return "\n\n".join(part.strip() for part in parts if part.strip())


def tool_descriptions(candidate: Candidate) -> dict[str, str]:
    """Exposed tool name → description, from the agent's components of that kind."""
    found: dict[str, str] = {}
    for name, component in candidate.components.items():
        if component.kind != "tool_descriptions":
            continue
        content = component.content
        if not isinstance(content, Mapping):
            raise UserError(f"Component {name!r} must map tool names to descriptions.")
        found.update({tool: str(text) for tool, text in content.items()})
    return found


async def choose_demonstrations(
    content: Demonstrations, query: str, vectors: VectorCache | None
) -> list[Demonstration]:
    """The demonstrations shown for an input, in the order in which they are shown.

    ``fixed``: those of ``order``. ``nearest``: the ``k`` whose inputs are most similar, most
    similar last; equal similarities (to five digits, within which embedders vary) go by place in
    the pool.
    """
    if content.retrieval == "fixed":
        by_id = {shown.id: shown for shown in content.pool}
        missing = [one for one in content.order if one not in by_id]
        if missing:
            raise UserError(
                f"Demonstrations {', '.join(map(repr, missing))} are ordered but not in the pool."
            )
        return [by_id[one] for one in content.order]
    if content.k == 0 or not content.pool:
        return []
    if vectors is None:
        raise UserError(
            "These demonstrations are retrieved by similarity, but no embedder is configured.",
            remedy="Configure an embedder, or use retrieval 'fixed'.",
        )
    first, *rest = await vectors.embed([query, *(shown.input for shown in content.pool)])
    scores = [round(sum(a * b for a, b in zip(first, one, strict=True)), 5) for one in rest]
    best = sorted(range(len(rest)), key=lambda index: (-scores[index], index))[: content.k]
    return [content.pool[index] for index in reversed(best)]


def _turns(shown: Demonstration, catalogue: Catalogue, *, native: bool) -> list[Message]:
    """A demonstration as chat turns, in the agent's own tool protocol."""
    turns = [Message(role="user", content=shown.input)]
    for position, given in enumerate(shown.actions):
        action = _in_schema_order(given, catalogue)
        last = position == len(shown.actions) - 1 and shown.answer is None
        if native:
            call = action.model_copy(update={"id": f"demo_{shown.id}_{position}"})
            turns.append(Message(role="assistant", tool_calls=(call,)))
            turns.append(
                Message(role="tool", content=_MORE, tool_call_id=call.id, name=action.name)
            )
        else:
            turns.append(Message(role="assistant", content=render_call(action)))
            if not last:
                turns.append(Message(role="user", content=render_result(action.name, _MORE)))
    if shown.answer is not None:
        turns.append(Message(role="assistant", content=shown.answer))
    return turns


def _in_schema_order(call: ToolCall, catalogue: Catalogue) -> ToolCall:
    """The call with its arguments in the order in which the tool declares them, others by name.

    Stored content has no order of its own (equal content, equal digest), so the order that a model
    sees must not depend on where the candidate came from: search and production would differ.
    """
    declared: list[str] = []
    for tool in catalogue.definitions:
        properties = tool.parameters.get("properties")
        if tool.name == call.name and isinstance(properties, Mapping):
            declared = [name for name in properties if name in call.arguments]
    names = declared + sorted(set(call.arguments) - set(declared))
    return call.model_copy(update={"arguments": {name: call.arguments[name] for name in names}})


def _refuse_unused(candidate: Candidate) -> None:
    """A component that would silently do nothing is a mistake, not a detail."""
    for name, component in candidate.components.items():
        if component.kind not in _USED_KINDS:
            raise UserError(
                f"Component {name!r} is of kind {component.kind!r}, which agents do not use yet; "
                f"used kinds: {', '.join(_USED_KINDS)}.",
                remedy="Remove the component, or write its text into the instructions.",
            )


def _read(kind: type[Content], name: str, component: Component) -> Content:
    try:
        return kind.model_validate(component.content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"Component {name!r} of kind {component.kind!r} cannot be read: "
            f"{where}: {first['msg']}."
        ) from error
