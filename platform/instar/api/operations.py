"""Operations: what several routes need around store functions, inside one transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from instar.api.auth import Caller
from instar.api.problems import ProblemError
from instar.api.schemas import (
    AgentIn,
    AgentVersionOut,
    LabelIn,
    TaskSetIn,
    TaskSetOut,
    VersionOut,
)
from instar.api.schemas_secrets import MovedSecretOut, ServerSaved
from instar.api.views import (
    agent_version_out,
    server_out,
    task_set_out,
    version_out,
    without_sealed,
)
from instar.evolution.facts import promotion_rule
from instar.evolution.schemas import EvolutionSpec
from instar.registry.diffs import Diff, diff_contents, diff_versions
from instar.registry.overlay import carry_over
from instar.rollouts.taskset import parse_task_set
from instar.runtime.tools.config import ToolServerConfig
from instar.runtime.tools.secrets import refuse_plain_secrets, settle_secrets
from instar.store.agents import AGENT, load_candidate_version, save_agent
from instar.store.artifacts import (
    ArtifactRef,
    Draft,
    create_version,
    describe_artifact,
    encode_content,
    lock_artifact,
    read_content,
    read_version,
    resolve,
)
from instar.store.labels import ANY, LabelMove, list_label_events, list_labels, move_label
from instar.store.projects import read_project
from instar.store.servers import find_server, put_server
from instar.store.tables import LabelRow
from instar.store.task_sets import TASK_SET, create_task_set
from instar_core.base import JsonValue
from instar_core.candidates import Candidate
from instar_core.errors import ConflictError, NotFoundError, PermissionDenied, UserError

__all__ = [
    "check_rule",
    "diff_artifact",
    "find_label",
    "move_label_back",
    "move_label_if",
    "save_agent_in",
    "save_server",
    "save_task_set",
    "save_version",
]

_OWN_ROUTES = {AGENT: "/v1/agents", TASK_SET: "/v1/task-sets"}


async def check_rule(caller: Caller, spec: EvolutionSpec) -> None:
    """Lets a run promote by itself only where its caller could approve, or the project said so.

    Raises:
        PermissionDenied: If the caller may not approve and the project's rule is to ask.
    """
    if spec.promotion != "auto" or caller.has("approver"):
        return
    async with caller.db.transaction(caller.project_id) as session:
        project = await read_project(session, caller.project_id)
    if promotion_rule(project.settings) != "auto":
        raise PermissionDenied(
            f"A key of role {caller.role!r} may not start a run that promotes by itself: this "
            "project asks a person first.",
            remedy="Leave 'promotion' out, or use the key of an approver.",
        )


async def save_version(
    session: AsyncSession, ref: ArtifactRef, new: Any, caller: Caller
) -> VersionOut:
    """Saves a content as a new version; agents and task sets have routes that check them."""
    if ref.kind in _OWN_ROUTES:
        raise UserError(
            f"A version of kind {ref.kind!r} is not saved as bare content.",
            remedy=f"Use POST {_OWN_ROUTES[ref.kind]}.",
        )
    content, media_type = encode_content(new.content)
    row = await create_version(
        session, ref, Draft(content, media_type, caller.author, reason=new.reason)
    )
    if new.description is not None:
        await describe_artifact(session, ref, caller.author, description=new.description)
    return version_out(row, content=new.content)


async def diff_artifact(session: AsyncSession, ref: ArtifactRef, old: str, new: str) -> Diff:
    """The difference of two versions; agents are compared by what they run, not by their pins."""
    if ref.kind not in _OWN_ROUTES:
        return await diff_versions(session, ref, old, new)
    sides: list[JsonValue] = []
    for at in (old, new):
        found = await resolve(session, ref, at)
        if ref.kind == TASK_SET:
            sides.append(without_sealed(await read_content(session, found.version)))
            continue
        candidate = await load_candidate_version(session, found.version.id)
        sides.append(candidate.model_dump(mode="json", include={"components", "harness"}))
    return diff_contents(sides[0], sides[1])


async def find_label(session: AsyncSession, ref: ArtifactRef, label: str) -> LabelRow:
    """A label by name.

    Raises:
        NotFoundError: If the artifact or the label does not exist.
    """
    rows = {row.name: row for row in await list_labels(session, ref)}
    if label not in rows:
        raise NotFoundError(
            f"There is no label {label!r} on {ref.kind} {ref.name!r}.",
            remedy=f"Its labels: {', '.join(rows) or 'none'}.",
        )
    return rows[label]


async def move_label_if(
    session: AsyncSession,
    ref: ArtifactRef,
    move: tuple[str, LabelIn],
    match: str | None,
    by: Caller,
) -> LabelRow:
    """Moves a label, where ``If-Match`` is given only if it still is as its reader saw it.

    Raises:
        ProblemError: ``precondition-failed`` if it moved meanwhile; nothing is moved.
    """
    name, wanted = move
    # The artifact's lock is held until the end of the transaction: between this look at the label
    # and its move nobody else can move it.
    artifact = await lock_artifact(session, ref)
    if match is not None:
        row = await session.get(LabelRow, (artifact.id, name), populate_existing=True)
        now = None if row is None else f'"{row.epoch}"'
        seen = [part.strip() for part in match.split(",")]
        if now is None or (now not in seen and "*" not in seen):
            raise ProblemError(
                "precondition-failed",
                f"The label {name!r} of {ref.kind} {ref.name!r} is {now or 'absent'} now, not "
                f"{match} as If-Match says; it was not moved.",
                remedy="Read it again and decide anew.",
            )
    unlock = by.role == "admin"
    target = LabelMove(name, wanted.version, ANY, wanted.cause or "moved by API", unlock)
    return await move_label(session, ref, target, by.author)


async def move_label_back(
    session: AsyncSession, ref: ArtifactRef, label: str, by: Caller
) -> LabelRow:
    """Moves a label to the version that it named before its last move.

    Raises:
        NotFoundError: If there is no such label.
        ConflictError: If the label has named no other version before.
    """
    now = await find_label(session, ref, label)
    events = await list_label_events(session, ref, label)
    before = next(
        (event.from_number for event in reversed(events) if event.to_number == now.number), None
    )
    if before is None:
        raise ConflictError(
            f"The label {label!r} of {ref.kind} {ref.name!r} has named no version before "
            f"{now.number}.",
            remedy="Point it at a version instead.",
        )
    move = LabelMove(label, before, now.number, "rolled back by API", by.role == "admin")
    return await move_label(session, ref, move, by.author)


async def save_server(
    session: AsyncSession, caller: Caller, name: str, config: ToolServerConfig
) -> ServerSaved:
    """Registers a tool server under the name in the path; secret values go to the store.

    Raises:
        UserError: If the registration carries another name, or refers to no secret of the project.
    """
    if config.name != name:
        raise UserError(
            f"The path names the server {name!r} and the body {config.name!r}.",
            remedy="Use one name in both.",
        )
    before = await find_server(session, caller.project_id, name)
    settled = await settle_secrets(
        session,
        caller.project_id,
        config,
        caller.service.keys,
        caller.author,
        None if before is None else ToolServerConfig.model_validate(before.config),
    )
    dumped = settled.config.model_dump(mode="json")
    row = await put_server(session, caller.project_id, name, dumped, caller.author)
    return ServerSaved(
        **server_out(row).model_dump(),
        moved=[MovedSecretOut(**one._asdict()) for one in settled.moved],
        notices=settled.notices,
    )


async def save_agent_in(session: AsyncSession, caller: Caller, new: AgentIn) -> AgentVersionOut:
    """Saves an agent version, and points a label at it where asked for."""
    if new.harness.tools and new.harness.tool_protocol == "none":
        named = ", ".join(repr(tool.name) for tool in new.harness.tools)
        raise UserError(
            f"The harness names the tools {named} and the tool_protocol 'none', under which no "
            "model is shown a tool.",
            remedy="Set tool_protocol to 'native' (the provider's tool calls) or 'text' (for "
            "models without them), or leave the tools out.",
        )
    candidate = Candidate(components=new.components, harness=new.harness)
    saved = await save_agent(
        session,
        caller.project_id,
        new.name,
        candidate,
        author=caller.author,
        reason=new.reason,
    )
    ref = ArtifactRef(caller.project_id, AGENT, new.name)
    # Before any label moves: the learned change in force is the one to carry over.
    await carry_over(session, ref, await read_version(session, saved.id), caller.author)
    if new.description:
        await describe_artifact(session, ref, caller.author, description=new.description)
    if new.label is not None:
        wanted = LabelIn(version=saved.version, cause=new.reason or "saved by API")
        await move_label_if(session, ref, (new.label, wanted), None, caller)
    return await agent_version_out(session, ref, str(saved.version))


async def save_task_set(session: AsyncSession, caller: Caller, new: TaskSetIn) -> TaskSetOut:
    """Imports a JSONL text as the next version of a task set, whole or not at all.

    Raises:
        TaskFileError: Naming the broken lines.
        PermissionDenied: If it brings commands to run along and the caller is no admin.
    """
    parsed = parse_task_set(new.jsonl.encode("utf-8"), name=new.name, source=new.name)
    if caller.role != "admin" and not all(isinstance(one, str) for one in parsed.bindings.values()):
        raise PermissionDenied(
            "This task set brings a test binding of its own: it says what runs on this machine.",
            remedy="Name a binding of a registered server instead, or let an admin import it.",
        )
    for server, one in parsed.bindings.items():
        if not isinstance(one, str):
            refuse_plain_secrets(server, one)
    bindings: dict[str, JsonValue] = {
        server: one if isinstance(one, str) else one.model_dump(mode="json")
        for server, one in parsed.bindings.items()
    }
    saved = await create_task_set(
        session,
        caller.project_id,
        new.name,
        parsed.tasks,
        author=caller.author,
        bindings=bindings,
    )
    ref = ArtifactRef(caller.project_id, TASK_SET, new.name)
    description = new.description or parsed.description
    if description:
        await describe_artifact(session, ref, caller.author, description=description)
    return await task_set_out(session, caller.project_id, saved)
