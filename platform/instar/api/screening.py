"""Screening: contents that say what runs on this machine, looked at before they are saved."""

from __future__ import annotations

import json
from typing import cast

from instar.api.auth import Caller
from instar.rollouts.taskset import TaskSet, parse_task_set
from instar.runtime.tools.secrets import refuse_plain_secrets
from instar.store.task_sets import TASK_SET
from instar_core.base import JsonValue
from instar_core.errors import PermissionDenied

__all__ = ["check_bindings", "screen"]


def screen(caller: Caller, kind: str, content: JsonValue) -> JsonValue:
    """A content as it may be saved by this caller.

    Task sets go through the reader of task files, so that verifiers and bindings are checked as
    they are at an import. A test binding that is spelled out takes an admin, wherever it stands.

    Raises:
        PermissionDenied: If the content brings commands to run along and the caller is no admin.
        TaskFileError: If the tasks are broken; names them.
    """
    if not isinstance(content, dict):
        return content
    if kind == TASK_SET and isinstance(content.get("tasks"), list):
        return _screen_tasks(caller, content)
    if kind == "environment" and caller.role != "admin":
        servers = content.get("servers")
        for server in servers.values() if isinstance(servers, dict) else ():
            if isinstance(server, dict) and isinstance(server.get("binding"), dict):
                raise PermissionDenied(
                    "This environment brings a test binding of its own: it says what runs on this "
                    "machine.",
                    remedy="Name a binding of a registered server instead, or let an admin save "
                    "it.",
                )
    return content


def check_bindings(caller: Caller, parsed: TaskSet) -> dict[str, JsonValue]:
    """The test bindings of a task set as they are stored.

    Raises:
        PermissionDenied: If it brings commands to run along and the caller is no admin.
        UserError: If one of them holds a secret as plain text.
    """
    if caller.role != "admin" and not all(isinstance(one, str) for one in parsed.bindings.values()):
        raise PermissionDenied(
            "This task set brings a test binding of its own: it says what runs on this machine.",
            remedy="Name a binding of a registered server instead, or let an admin import it.",
        )
    for server, one in parsed.bindings.items():
        if not isinstance(one, str):
            refuse_plain_secrets(server, one)
    return {
        server: one if isinstance(one, str) else one.model_dump(mode="json")
        for server, one in parsed.bindings.items()
    }


def _screen_tasks(caller: Caller, content: dict[str, JsonValue]) -> JsonValue:
    header = {"task_set": {"bindings": content.get("bindings", {})}}
    tasks = cast("list[JsonValue]", content["tasks"])
    lines = [json.dumps(one) for one in (header, *tasks)]
    parsed = parse_task_set("\n".join(lines).encode(), source="the content's tasks")
    extra = {key: value for key, value in content.items() if key not in ("tasks", "bindings")}
    return {
        **extra,  # unknown fields are refused where the kind is checked
        "tasks": [task.model_dump(mode="json") for task in parsed.tasks],
        "bindings": check_bindings(caller, parsed),
    }
