"""Views: how rows of the store are shown, read inside one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Response
from sqlalchemy.ext.asyncio import AsyncSession

from instar.api.schemas import (
    AgentOut,
    AgentVersionOut,
    ArtifactOut,
    CandidateOut,
    EvaluationOut,
    LabelOut,
    ProjectOut,
    RunOut,
    ServerOut,
    TaskSetOut,
    VersionOut,
)
from instar.api.schemas_artifacts import LabelEventOut
from instar.evolution.schemas import PromotionRule
from instar.redaction import redact_text
from instar.runtime.tools.config import ToolServerConfig
from instar.store.agents import AGENT, load_candidate_version
from instar.store.artifacts import (
    ArtifactRef,
    read_artifact,
    resolve,
)
from instar.store.evolution import list_candidates, list_evaluations, read_evolution_run
from instar.store.labels import list_labels
from instar.store.runs import read_run_version
from instar.store.secret_refs import find_references
from instar.store.tables import (
    ArtifactRow,
    LabelEventRow,
    LabelRow,
    McpServerRow,
    ProjectRow,
    RunRow,
    VersionRow,
)
from instar.store.task_sets import TASK_SET, TaskSetVersion, count_tasks
from instar_core.base import content_hash
from instar_core.candidates import Candidate
from instar_core.messages import Message
from instar_core.rollouts import Trajectory
from instar_core.usage import Usage

__all__ = [
    "agent_out",
    "agent_version_out",
    "artifact_out",
    "candidates_out",
    "label_event_out",
    "label_out",
    "labels_of",
    "project_out",
    "read_agent_out",
    "run_out",
    "server_etag",
    "server_out",
    "set_etag",
    "task_set_out",
    "version_out",
]


def set_etag(response: Response, etag: str | int) -> None:
    """Names the state that was read, for a later ``If-Match``."""
    response.headers["ETag"] = f'"{etag}"'


async def labels_of(session: AsyncSession, ref: ArtifactRef) -> dict[str, int]:
    """Label → version number."""
    return {row.name: row.number for row in await list_labels(session, ref)}


def artifact_out(row: ArtifactRow, labels: Sequence[LabelRow]) -> ArtifactOut:
    """An artifact as it is shown."""
    return ArtifactOut(
        id=row.id,
        kind=row.kind,
        name=row.name,
        description=row.description,
        tags=list(row.tags),
        owner_kind=row.owner_kind,
        job_access=row.job_access,
        last_version=row.last_version,
        labels={label.name: label.number for label in labels},
        created_at=row.created_at,
    )


def version_out(row: VersionRow, **more: Any) -> VersionOut:
    """A version as it is shown; ``more`` are its content and parents where they were read."""
    return VersionOut(
        id=row.id,
        number=row.number,
        digest=row.blob_digest,
        media_type=row.media_type,
        author_kind=row.author_kind,
        author=row.author,
        reason=row.reason,
        evidence=row.evidence,
        origin=row.origin,
        base_id=row.base_id,
        run_id=row.run_id,
        created_at=row.created_at,
        **more,
    )


def label_out(row: LabelRow) -> LabelOut:
    """A label as it is shown."""
    return LabelOut(
        label=row.name,
        version=row.number,
        protected=row.protected,
        move_role=row.move_role,
        epoch=row.epoch,
        moved_at=row.moved_at,
    )


def label_event_out(row: LabelEventRow) -> LabelEventOut:
    """One move of a label as it is shown."""
    return LabelEventOut(
        label=row.label,
        before=row.from_number,
        after=row.to_number,
        by_kind=row.actor_kind,
        by=row.actor,
        cause=row.cause,
        run_id=row.run_id,
        at=row.created_at,
    )


def server_out(row: McpServerRow) -> ServerOut:
    """A tool server as it is shown: secrets may hide in the values of its environment."""
    config = ToolServerConfig.model_validate(row.config)
    return ServerOut(
        name=config.name,
        kind=config.kind,
        command=config.command,
        args=[redact_text(arg) for arg in config.args],
        functions=list(config.functions),
        env_names=sorted(config.env),
        secret_ids=find_references(row.config),
        test_bindings=sorted(config.test_bindings),
        effect_free=config.effect_free,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def server_etag(row: McpServerRow) -> str:
    """An ETag that changes with the registration, values of its environment included."""
    return content_hash([row.id, row.config])[:32]


def project_out(row: ProjectRow) -> ProjectOut:
    """A project as it is shown."""
    rule: PromotionRule = "auto" if row.settings.get("promotion_rule") == "auto" else "ask"
    return ProjectOut(id=row.id, name=row.name, promotion=rule)


async def agent_out(session: AsyncSession, row: ArtifactRow) -> AgentOut:
    """An agent as it is shown in lists."""
    return AgentOut(
        name=row.name,
        description=row.description,
        last_version=row.last_version,
        labels=await labels_of(session, ArtifactRef(row.project_id, AGENT, row.name)),
        created_at=row.created_at,
    )


async def read_agent_out(session: AsyncSession, ref: ArtifactRef, response: Response) -> AgentOut:
    """One agent, with an ETag that changes with whatever is shown."""
    row = await read_artifact(session, ref)
    out = await agent_out(session, row)
    epochs = [f"{label.name}.{label.epoch}" for label in await list_labels(session, ref)]
    set_etag(response, "-".join([str(row.revision), str(row.last_version), *epochs]))
    return out


async def agent_version_out(session: AsyncSession, ref: ArtifactRef, at: str) -> AgentVersionOut:
    """An agent version with everything that runs."""
    version = (await resolve(session, ref, at)).version
    candidate = await load_candidate_version(session, version.id)
    return AgentVersionOut(
        name=ref.name,
        version=version.number,
        digest=candidate.digest,
        author_kind=version.author_kind,
        author=version.author,
        reason=version.reason,
        created_at=version.created_at,
        components=candidate.components,
        harness=candidate.harness,
    )


async def task_set_out(
    session: AsyncSession, project_id: str, version: TaskSetVersion
) -> TaskSetOut:
    """A task-set version as it is shown: counts of every split, contents of none."""
    ref = ArtifactRef(project_id, TASK_SET, version.name)
    artifact = await read_artifact(session, ref)
    counts = await count_tasks(session, version.id)
    return TaskSetOut(
        name=version.name,
        version=version.version,
        description=artifact.description,
        counts={split: count.tasks for split, count in counts.items()},
        groups={split: count.groups for split, count in counts.items()},
        labels=await labels_of(session, ref),
        created_at=artifact.created_at,
    )


async def candidates_out(session: AsyncSession, run_id: str) -> list[CandidateOut]:
    """The candidates of an evolution run in the order they came up, with their search scores.

    Raises:
        NotFoundError: If this project has no such run.
    """
    await read_evolution_run(session, run_id)
    scores: dict[str, list[EvaluationOut]] = {}
    for row in await list_evaluations(session, run_id):
        if row.split != "sealed":
            shown = EvaluationOut(split=row.split, rollouts=row.rollouts, mean=row.mean)
            scores.setdefault(row.candidate_digest, []).append(shown)
    found = []
    for candidate in await list_candidates(session, run_id):
        content = Candidate.model_validate(candidate.content)
        found.append(
            CandidateOut(
                digest=candidate.digest,
                parents=list(content.parents),
                note=content.note,
                components=content.components,
                evaluations=scores.get(candidate.digest, []),
                created_at=candidate.created_at,
            )
        )
    return found


async def run_out(session: AsyncSession, row: RunRow) -> RunOut:
    """A run as it is shown."""
    trajectory = Trajectory.model_validate(row.output) if row.output else Trajectory()
    return RunOut(
        id=row.id,
        agent=row.agent,
        version=await read_run_version(session, row),
        label=row.label,
        state=row.state,  # type: ignore[arg-type]  # a check constraint of the table
        answer=trajectory.answer,
        stop=row.stop,
        error=row.error,
        usage=Usage.model_validate(row.usage) if row.usage else Usage(),
        steps=list(trajectory.steps),
        input=[Message.model_validate(turn) for turn in row.input or []],
        created_at=row.created_at,
        finished_at=row.finished_at,
    )
