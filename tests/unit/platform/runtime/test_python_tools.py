"""Python functions as tools, and production runs with them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, Literal

import pytest

from instar.runtime.context import VectorCache
from instar.runtime.run import RunServices, run_agent
from instar.runtime.testing import ScriptedModel, WordEmbedder, calling
from instar.runtime.tools.config import ToolServerConfig
from instar.runtime.tools.live import LiveTools
from instar.runtime.tools.python_tools import PythonTools, ToolContext
from instar_core.candidates import Candidate, Component, Harness
from instar_core.errors import EnvironmentFault, UserError
from instar_core.messages import Message
from instar_core.testing import ReplyScript

HERE = __name__
RELEASE = threading.Event()


def route(ticket: int, queue: Literal["harbor", "lantern"] = "harbor") -> dict[str, Any]:
    """Puts a ticket into a queue."""
    return {"ticket": ticket, "queue": queue}


async def remember(text: str, where: ToolContext) -> str:
    """Writes a text into the sandbox copy."""
    assert where.slot_dir is not None
    (where.slot_dir / "memory.txt").write_text(text)
    return "ok"


def fail(kind: str) -> str:
    """Fails."""
    if kind == "outside":
        raise EnvironmentFault("disk full")
    raise KeyError(kind)


def hang() -> str:
    """Never ends within the limit."""
    RELEASE.wait()
    return "late"


def untyped(text) -> str:  # type: ignore[no-untyped-def]
    """Has no schema."""
    return str(text)


def config(*names: str, **changes: Any) -> ToolServerConfig:
    return ToolServerConfig.model_validate(
        {
            "name": "local",
            "kind": "python",
            "functions": [f"{HERE}:{name}" for name in names],
            **changes,
        }
    )


def started(settings: ToolServerConfig, context: ToolContext | None = None) -> PythonTools:
    tools = PythonTools(settings, context or ToolContext())
    asyncio.run(tools.start())
    return tools


def test_the_schema_comes_from_the_signature() -> None:
    listed = started(config("route", "remember")).listing.tools
    assert listed[0].description == "Puts a ticket into a queue."
    assert listed[0].schema["required"] == ["ticket"]
    assert listed[0].schema["additionalProperties"] is False
    assert list(listed[1].schema["properties"]) == ["text"]


def test_results_and_failures(tmp_path: Path) -> None:
    tools = started(config("route", "remember", "fail"), ToolContext(tmp_path))

    async def main() -> None:
        good = await tools.call("route", {"ticket": 7})
        assert good.text == '{"queue":"harbor","ticket":7}'
        assert (await tools.call("remember", {"text": "hi"})).text == "ok"
        assert (tmp_path / "memory.txt").read_text() == "hi"
        bad = await tools.call("route", {"ticket": "x"})
        assert bad.is_error
        odd = await tools.call("fail", {"kind": "odd"})
        assert (odd.is_error, odd.text) == (True, "fail failed: KeyError: 'odd'")
        with pytest.raises(EnvironmentFault):
            await tools.call("fail", {"kind": "outside"})

    asyncio.run(main())


def test_a_function_that_hangs_is_abandoned() -> None:
    tools = started(config("hang", call_timeout_s=0.05))

    async def main() -> None:
        assert "timed out" in (await tools.call("hang", {})).text
        assert tools.dirty

    asyncio.run(main())
    RELEASE.set()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("no.such.module:x", "cannot be imported"),
        (f"{HERE}:nothing", "cannot be imported"),
        (f"{HERE}:HERE", "is not a function"),
        (f"{HERE}:untyped", "'text' has no type annotation"),
    ],
)
def test_entries_that_cannot_be_used_are_refused(entry: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        started(config("route").model_copy(update={"functions": (entry,)}))


def agent(**harness: Any) -> Candidate:
    return Candidate(
        components={"prompt": Component(kind="instructions", content="Route.")},
        harness=Harness.model_validate({"model": "m", **harness}),
    )


def test_a_production_run_uses_the_live_tools() -> None:
    model = ScriptedModel(
        ReplyScript(
            [
                ("go", calling(("route", {"ticket": 7, "queue": "lantern"}))),
                ("lantern", "It is in lantern."),
            ]
        )
    )

    async def main() -> None:
        async with LiveTools([config("route")]) as tools:
            services = RunServices(lambda _: model, tools, VectorCache(WordEmbedder()))
            candidate = agent(tool_protocol="native", tools=[{"name": "local"}])
            trajectory = await run_agent(candidate, "go", services, run_id="r1")
            assert trajectory.answer == "It is in lantern."
            assert [step.kind for step in trajectory.steps] == ["model", "tool", "model"]
            assert trajectory.opening[0] == Message(role="system", content="Route.")

    asyncio.run(main())
    assert [tool.name for tool in model.requests[0].tools] == ["route"]
    assert model.requests[0].seed != model.requests[1].seed
