"""The sample agent and its desk server as the JSON that the API takes.

Two forms share tools and tasks: one for the packaged open model (135 M parameters: one tool call a
ticket, a text protocol, a short prompt) and one for real providers (all tools, native calls).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.support_desk.build import test_binding
from instar_core.candidates import Candidate, Component, Harness, Limits, ToolServer
from instar_core.messages import Sampling

__all__ = ["AGENT_NAME", "SERVER_NAME", "desk_server", "support_agent"]

HERE = Path(__file__).resolve().parent
AGENT_NAME = "support-desk"
SERVER_NAME = "desk"


def desk_server(live_db: Path) -> dict[str, Any]:
    """The desk's MCP server: the live one on ``live_db``, and its sandbox copy for nights."""
    return {
        "name": SERVER_NAME,
        "kind": "mcp_stdio",
        "command": "{python}",
        "args": ["{root}/server.py"],
        "root": str(HERE),
        "env": {"DESK_DB": str(live_db)},
        "test_bindings": {"sandbox": test_binding()},
    }


def support_agent(model: str) -> Candidate:
    """The agent before its first night: a policy, no demonstrations, no lessons.

    Args:
        model: ``local/…`` for the packaged model, or any provider's model such as ``openai/…``.
    """
    local = model.startswith("local/")
    policy = (HERE / ("policy.md" if local else "policy_full.md")).read_text(encoding="utf-8")
    return Candidate(
        components={
            "instructions": Component(
                kind="instructions", content=policy.strip(), trainable=False, owner="person"
            ),
            "lessons": Component(kind="lessons", content={"entries": []}, owner="job"),
            "demonstrations": Component(
                kind="demonstrations",
                content={"pool": [], "retrieval": "fixed", "k": 0, "order": []},
                owner="job",
            ),
        },
        harness=Harness(
            model=model,
            sampling=Sampling(temperature=0.0, max_tokens=48 if local else 400),
            tools=(ToolServer(name=SERVER_NAME, allow=("assign_queue",) if local else ()),),
            tool_protocol="text" if local else "native",
            final_after_tool=local,
            limits=Limits(
                max_steps=2 if local else 8, max_tokens=8_000 if local else 40_000, timeout_s=120
            ),
        ),
    )
