"""The opening messages: one place, deterministic, the same in practice and production."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from instar.runtime.context import VectorCache, build_opening, choose_demonstrations
from instar.runtime.testing import WordEmbedder
from instar.runtime.tools.listing import Catalogue, ListedTool, Listing
from instar_core.base import JsonValue
from instar_core.candidates import (
    Candidate,
    Component,
    Demonstration,
    Demonstrations,
    Harness,
    Lesson,
    Lessons,
    ToolServer,
)
from instar_core.errors import UserError
from instar_core.messages import Message, Messages, ToolCall

POOL = tuple(
    Demonstration(
        id=f"d{place}",
        input=text,
        actions=(ToolCall(name="assign", arguments={"queue": queue}),),
    )
    for place, (text, queue) in enumerate(
        [
            ("my parcel is late", "harbor"),
            ("the lamp is broken", "lantern"),
            ("where is my parcel now", "harbor"),
        ]
    )
)


def agent(protocol: str = "text", **parts: tuple[str, Any]) -> Candidate:
    components = {
        name: Component.model_validate({"kind": kind, "content": content})
        for name, (kind, content) in parts.items()
    }
    harness = Harness.model_validate(
        {"model": "m", "tool_protocol": protocol, "tools": [{"name": "desk"}]}
    )
    return Candidate(components=components, harness=harness)


def dumped(value: Demonstrations | Lessons) -> Any:
    return value.model_dump(mode="json")


CATALOGUE = Catalogue.build(
    [ToolServer(name="desk")],
    {
        "desk": Listing(
            (
                ListedTool(
                    "assign",
                    "Puts the ticket into a queue.",
                    {"type": "object", "properties": {"queue": {"type": "string"}}},
                ),
            )
        )
    },
)


def opening(candidate: Candidate, conversation: Messages | str, vectors: Any = None) -> Messages:
    if isinstance(conversation, str):
        conversation = (Message(role="user", content=conversation),)
    return asyncio.run(build_opening(candidate, conversation, CATALOGUE, vectors))


def test_instructions_lessons_and_tools_become_the_system_prompt() -> None:
    candidate = agent(
        prompt=("instructions", "Route tickets."),
        lessons=(
            "lessons",
            dumped(Lessons(entries=(Lesson(id="L1", text="Parcels\n go to harbor."),))),
        ),
    )
    system, user = opening(candidate, "my parcel")
    assert system.content == (
        "Route tickets.\n\n"
        "Lessons from earlier work:\n[L1] Parcels go to harbor.\n\n"
        "To use a tool, reply with one JSON object and nothing else:\n"
        '{"tool": "<name>", "<argument>": <value>}\n'
        "Tools:\n- assign(queue?: string): Puts the ticket into a queue."
    )
    assert user == Message(role="user", content="my parcel")


def test_an_agent_of_nothing_has_only_the_input() -> None:
    assert opening(agent("none"), "hello") == (Message(role="user", content="hello"),)


def test_fixed_demonstrations_are_chat_turns_in_the_given_order() -> None:
    shown = Demonstrations(pool=POOL, order=("d1", "d0"))
    turns = opening(agent(shots=("demonstrations", dumped(shown))), "x")[1:]
    assert [(turn.role, turn.content) for turn in turns] == [
        ("user", "the lamp is broken"),
        ("assistant", '{"tool": "assign", "queue": "lantern"}'),
        ("user", "my parcel is late"),
        ("assistant", '{"tool": "assign", "queue": "harbor"}'),
        ("user", "x"),
    ]


def test_s25_arguments_are_shown_in_the_tools_order_wherever_the_candidate_came_from() -> None:
    """Stored content is canonical (sorted keys); search and production must look alike."""
    schema = {"type": "object", "properties": {"ticket": {}, "queue": {}}}
    desk = Listing((ListedTool("assign", "", schema),))
    catalogue = Catalogue.build([ToolServer(name="desk")], {"desk": desk})
    asked = (Message(role="user", content="x"),)
    seen = set()
    orders: tuple[dict[str, JsonValue], ...] = (
        {"ticket": "T-1", "queue": "harbor", "why": 1},
        {"queue": "harbor", "why": 1, "ticket": "T-1"},
    )
    for arguments in orders:
        case = Demonstration(
            id="d", input="t", actions=(ToolCall(name="assign", arguments=arguments),)
        )
        for protocol in ("text", "native"):
            shown = dumped(Demonstrations(pool=(case,), order=("d",)))
            built = build_opening(
                agent(protocol, shots=("demonstrations", shown)), asked, catalogue
            )
            turns = asyncio.run(built)
            seen.add((protocol, str([(turn.content, turn.tool_calls) for turn in turns])))
            if protocol == "text":
                assert (
                    turns[2].content
                    == '{"tool": "assign", "ticket": "T-1", "queue": "harbor", "why": 1}'
                )
    assert len(seen) == 2


def test_native_demonstrations_answer_every_call() -> None:
    shown = Demonstrations(pool=POOL[:1], order=("d0",))
    turns = opening(agent("native", shots=("demonstrations", dumped(shown))), "x")
    assert [turn.role for turn in turns] == ["user", "assistant", "tool", "user"]
    assert turns[2].tool_call_id == turns[1].tool_calls[0].id


def test_several_steps_and_an_answer_alternate_roles() -> None:
    shot = Demonstration(id="d", input="q", actions=POOL[0].actions * 2, answer="done")
    shown = Demonstrations(pool=(shot,), order=("d",))
    turns = opening(agent(shots=("demonstrations", dumped(shown))), "x")[1:]
    assert [turn.role for turn in turns] == ["user", "assistant"] * 3 + ["user"]
    assert turns[-2].content == "done"


def test_nearest_shows_the_most_similar_last_and_embeds_the_pool_once() -> None:
    embedder = WordEmbedder()
    shown = Demonstrations(pool=POOL, retrieval="nearest", k=2)

    async def twice() -> list[list[str]]:
        vectors = VectorCache(embedder)
        return [
            [one.id for one in await choose_demonstrations(shown, query, vectors)]
            for query in ("where is my parcel", "the lamp broken", "where is my parcel")
        ]

    first, second, third = asyncio.run(twice())
    assert first == ["d0", "d2"]
    assert second[-1] == "d1"
    assert third == first
    assert len(embedder.asked) == len(set(embedder.asked)) == 5


def test_concurrent_rollouts_embed_the_pool_once() -> None:
    embedder = WordEmbedder()
    shown = Demonstrations(pool=POOL, retrieval="nearest", k=1)

    async def many() -> None:
        vectors = VectorCache(embedder)
        await asyncio.gather(*(choose_demonstrations(shown, "same", vectors) for _ in range(8)))

    asyncio.run(many())
    assert len(embedder.asked) == 4


def test_equal_similarities_go_by_place_in_the_pool() -> None:
    pool = tuple(Demonstration(id=f"d{place}", input="same words") for place in range(4))
    shown = Demonstrations(pool=pool, retrieval="nearest", k=2)
    chosen = asyncio.run(choose_demonstrations(shown, "same", VectorCache(WordEmbedder())))
    assert [one.id for one in chosen] == ["d1", "d0"]


def test_turns_of_a_conversation_are_kept_and_its_system_turn_is_appended() -> None:
    conversation = (
        Message(role="system", content="Answer in French."),
        Message(role="user", content="hello"),
        Message(role="assistant", content="bonjour"),
        Message(role="user", content="again"),
    )
    turns = opening(agent("none", prompt=("instructions", "Be kind.")), conversation)
    assert turns[0].content == "Be kind.\n\nAnswer in French."
    assert [turn.content for turn in turns[1:]] == ["hello", "bonjour", "again"]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (("memory", {}), "kind 'memory', which agents do not use yet"),
        (("instructions", {"a": 1}), "must be a text"),
        (("lessons", {"entries": [{"id": "1"}]}), "entries.0.text"),
        (("demonstrations", {"order": ["d9"]}), "'d9' are ordered but not in the pool"),
        (
            ("demonstrations", dumped(Demonstrations(pool=POOL, retrieval="nearest", k=1))),
            "no embedder",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(part: tuple[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        opening(agent(odd=part), "x")
