"""Sealed tasks in an export: added afterwards, by who may read them, to what the service gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from instar.redaction import mask_known
from instar.registry.transfer.exporting import manifest_bytes, task_lines
from instar.registry.transfer.manifest import (
    MANIFEST,
    ArtifactFacts,
    FileFacts,
    Manifest,
    SealedFacts,
    VersionFacts,
)
from instar.store.sealed_export import SealedContent
from instar_core.base import content_hash
from instar_core.errors import UserError

__all__ = ["add_sealed"]


def add_sealed(files: Mapping[str, bytes], contents: Sequence[SealedContent]) -> dict[str, bytes]:
    """The files of an export with the contents of its sealed tasks, and a manifest that says so.

    Args:
        files: The export.
        contents: The sealed contents of the project; those that it does not name are left out.

    Raises:
        UserError: If a sealed task holds the value of a known secret.
    """
    by_set: dict[tuple[str, int], list[SealedContent]] = {}
    for one in contents:
        by_set.setdefault((one.name, one.number), []).append(one)
    manifest = Manifest.model_validate_json(files[MANIFEST])
    made: dict[str, bytes] = {}
    artifacts = tuple(_with_sealed(one, by_set, made) for one in manifest.artifacts)
    named = [
        FileFacts(path=path, sha256=content_hash(data), size=len(data))
        for path, data in made.items()
    ]
    changed = manifest.model_copy(
        update={
            "artifacts": artifacts,
            "sealed": SealedFacts(included=True, tasks=manifest.sealed.tasks),
            "files": tuple(sorted((*manifest.files, *named), key=lambda one: one.path)),
        }
    )
    return {**files, **made, MANIFEST: manifest_bytes(changed)}


def _with_sealed(
    artifact: ArtifactFacts,
    by_set: Mapping[tuple[str, int], Sequence[SealedContent]],
    made: dict[str, bytes],
) -> ArtifactFacts:
    versions: list[VersionFacts] = []
    for version in artifact.versions:
        found = by_set.get((artifact.name, version.number), ())
        tasks = version.tasks
        # Sets whose sealed contents never came here have none to give.
        if artifact.kind != "task_set" or tasks is None or len(found) != tasks.sealed or not found:
            versions.append(version)
            continue
        data = task_lines(one.content for one in found)
        text = data.decode("utf-8", "surrogatepass")
        if mask_known(text) != text:
            raise UserError(
                f"a sealed task of {artifact.name!r} version {version.number} holds the value of a "
                "known secret; nothing was exported.",
                remedy="Replace the secret and import the tasks without it.",
            )
        path = tasks.file.removesuffix("tasks.jsonl") + "sealed.jsonl"
        made[path] = data
        kept = tasks.model_copy(update={"sealed_file": path})
        versions.append(version.model_copy(update={"tasks": kept}))
    return artifact.model_copy(update={"versions": tuple(versions)})
