"""Operations: what several routes need around store functions, inside one transaction."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from instar.api.artifacts import move_label_if
from instar.api.auth import Caller
from instar.api.preconditions import check_match
from instar.api.schemas import (
    AgentIn,
    AgentVersionOut,
    LabelIn,
    TaskSetIn,
    TaskSetOut,
)
from instar.api.schemas_secrets import MovedSecretOut, ServerSaved
from instar.api.screening import check_bindings
from instar.api.views import (
    agent_version_out,
    server_etag,
    server_out,
    task_set_out,
)
from instar.evolution.facts import promotion_rule
from instar.evolution.schemas import EvolutionSpec
from instar.registry.kinds.agent import check_parts
from instar.registry.overlay import carry_over
from instar.rollouts.taskset import parse_task_set
from instar.runtime.tools.config import ToolServerConfig
from instar.runtime.tools.secrets import settle_secrets
from instar.store.agents import AGENT, save_agent
from instar.store.artifacts import (
    ArtifactRef,
    describe_artifact,
    read_version,
)
from instar.store.contents import lock_stream
from instar.store.projects import read_project
from instar.store.servers import find_server, put_server
from instar.store.task_sets import TASK_SET, create_task_set
from instar_core.candidates import Candidate
from instar_core.errors import PermissionDenied, UserError

__all__ = [
    "check_rule",
    "save_agent_in",
    "save_server",
    "save_task_set",
]


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


async def save_server(
    session: AsyncSession, caller: Caller, name: str, config: ToolServerConfig, match: str | None
) -> ServerSaved:
    """Registers a tool server under the name in the path; secret values go to the store.

    Raises:
        ProblemError: ``precondition-required`` or ``precondition-failed`` for one that exists.
        UserError: If the registration carries another name, or refers to no secret of the project.
    """
    if config.name != name:
        raise UserError(
            f"The path names the server {name!r} and the body {config.name!r}.",
            remedy="Use one name in both.",
        )
    # The lock that every audited change takes: nobody registers it between the look and the change.
    await lock_stream(session, caller.project_id, "admin")
    before = await find_server(session, caller.project_id, name)
    present = None if before is None else server_etag(before)
    check_match(match, present, f"The tool server {name!r}")
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
    """Saves an agent version, and points a label at it where asked for.

    Raises:
        InvalidContent: If the runtime could not run it; nothing is saved.
        PermissionDenied: If the label takes a higher role.
    """
    check_parts(new.components, new.harness)
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
        await move_label_if(session, ref, (new.label, wanted), "*", caller)
    return await agent_version_out(session, ref, str(saved.version))


async def save_task_set(session: AsyncSession, caller: Caller, new: TaskSetIn) -> TaskSetOut:
    """Imports a JSONL text as the next version of a task set, whole or not at all.

    Raises:
        TaskFileError: Naming the broken lines.
        PermissionDenied: If it brings commands to run along and the caller is no admin.
    """
    parsed = parse_task_set(new.jsonl.encode("utf-8"), name=new.name, source=new.name)
    bindings = check_bindings(caller, parsed)
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
