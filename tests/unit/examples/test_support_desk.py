"""The sample: its task file is what its builder builds, and no phrasing crosses splits."""

from __future__ import annotations

from pathlib import Path

from examples.support_desk.agent import desk_server, support_agent
from examples.support_desk.build import TASK_FILE, build_lines, build_tickets, fresh_tickets
from examples.support_desk.phrasings import PHRASINGS
from instar.rollouts.taskset import load_task_set
from instar.runtime.tools.config import ToolServerConfig


def test_the_committed_task_file_is_what_the_builder_builds() -> None:
    assert TASK_FILE.read_text(encoding="utf-8").splitlines() == build_lines()


def test_at_least_four_hundred_tickets_take_one_call() -> None:
    tasks = load_task_set(TASK_FILE).tasks
    assert sum(task.slice == "one_call" for task in tasks) >= 400
    assert sum(task.slice == "several_steps" for task in tasks) >= 40


def test_no_phrasing_crosses_splits() -> None:
    splits: dict[str, set[str]] = {}
    phrasings = [phrasing for block in PHRASINGS.values() for phrasing in block]
    assert len(set(phrasings)) == len(phrasings)
    for ticket in build_tickets():
        found = [phrasing for phrasing in phrasings if phrasing in ticket["text"]]
        assert found, ticket["text"]
        splits.setdefault(max(found, key=len), set()).add(ticket["split"])
    assert len(splits) == len(phrasings)
    assert all(len(where) == 1 for where in splits.values())


def test_fresh_tickets_are_in_no_split() -> None:
    texts = {ticket["text"] for ticket in build_tickets()}
    assert not texts & {ticket["text"] for ticket in fresh_tickets()}


def test_the_sandbox_copy_never_carries_the_live_database() -> None:
    live = Path("/nowhere/live.db")
    config = ToolServerConfig.model_validate(desk_server(live))
    bound = config.launch_bound(config.test_bindings["sandbox"], Path("/slot"))
    assert str(live) in config.launch_live().env.values()
    assert bound.env == {"DESK_DB": "/slot/desk.db"}


def test_the_policy_names_no_queue() -> None:
    for model in ("local/any", "openai/any"):
        text = str(support_agent(model).components["instructions"].content)
        assert not any(queue in text for queue in PHRASINGS)
