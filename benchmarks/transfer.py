"""Transfer as a check: ``python -m benchmarks.transfer --json`` takes a project out and in again.

By default the project is made here: agents whose versions a run would have saved, prompts, skills,
task sets, labels with history. With ``--url`` and ``--data-dir`` it is that of a running service,
such as the demo's (``python -m benchmarks.demo --keep`` leaves one). It is imported into a fresh
database, twice, and exported from there: blobs are hashed again by the database itself, labels and
their history compared one by one.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from instar.registry.transfer.exporting import ExportOptions, export_project
from instar.registry.transfer.importing import import_package
from instar.registry.transfer.manifest import Manifest
from instar.registry.transfer.package import Package, open_package
from instar.registry.transfer.report import ImportReport
from instar.store.agents import save_agent
from instar.store.artifacts import ArtifactRef, Draft, create_version, encode_content
from instar.store.audit import Author
from instar.store.labels import ANY, LabelMove, move_label
from instar.store.projects import create_project
from instar.store.session import Database
from instar.store.task_sets import create_task_set
from instar.store.testing import MigratedDatabase, create_database, start_cluster
from instar_core.base import JsonValue
from instar_core.candidates import Candidate, Component, Harness
from instar_core.tasks import Split, Task, VerifierSpec
from instar_skills.archives import read_archive

__all__ = ["main"]

_BY = Author("person", "benchmark")


def main(argv: list[str] | None = None) -> int:
    """Runs the check and prints its report; returns 0 when everything came back equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document (always done)")
    parser.add_argument(
        "--url", default="", help="a running service instead of a project made here"
    )
    parser.add_argument("--data-dir", default="", help="its data directory, for the key")
    parser.add_argument("--agents", type=int, default=10, help="agents of the project made here")
    parser.add_argument("--versions", type=int, default=10, help="versions of each")
    options = parser.parse_args(argv)
    with _fresh_database() as database:
        if options.url or options.data_dir:
            source, data, took = _take_from_service(options.url, options.data_dir)
        else:
            source = "made here"
            made = database.run(lambda db: _make(db, options.agents, options.versions))
            began = time.perf_counter()
            data = database.run(lambda db: _take_out(db, made))
            took = time.perf_counter() - began
        report = {"source": source, "export_s": round(took, 3), **_check(database, data)}
    print(json.dumps(report, ensure_ascii=False, indent=2))
    good = report["blobs_equal"] and report["labels_equal"] and report["manifests_equal"]
    return 0 if good and report["second_import_changes"] == 0 else 1


@contextmanager
def _fresh_database() -> Iterator[MigratedDatabase]:
    """An empty database on a server of its own."""
    root = Path(tempfile.mkdtemp(prefix="instar-tr"))
    if os.geteuid() == 0:
        root.chmod(0o711)
    cluster = start_cluster(root)
    try:
        yield create_database(cluster)
    finally:
        cluster.server.stop(timeout_s=0.0)
        shutil.rmtree(root, ignore_errors=True)


def _take_from_service(url: str, data_dir: str) -> tuple[str, bytes, float]:
    """The export of a running service, over REST with the key of its data directory."""
    from instar.cli.client import Client, path_of

    if url:
        os.environ["INSTAR_URL"] = url
    if data_dir:
        os.environ["INSTAR_DATA_DIR"] = data_dir
    client = Client()
    began = time.perf_counter()
    data = client.download(path_of("export"), {})
    return client.base_url, data, time.perf_counter() - began


def _check(database: MigratedDatabase, data: bytes) -> dict[str, Any]:
    """Imports twice into a new project, exports again, and compares everything."""
    package = open_package(read_archive(data))
    target, first, second, took, back = database.run(lambda db: _go(db, package))
    blobs = {
        (kind, name, number): (stored, hashed)
        for kind, name, number, stored, hashed in database.query(
            "select a.kind, a.name, v.number, v.blob_digest, encode(sha256(b.content), 'hex')"
            " from version v join artifact a on a.id = v.artifact_id"
            " join blob b on b.project_id = v.project_id and b.digest = v.blob_digest"
            " where v.project_id = %s",
            target,
        )
    }
    wanted = {tuple(item.key): (item.facts.digest,) * 2 for item in package.versions}
    again = open_package(read_archive(back)).manifest
    return {
        "artifacts": len(package.manifest.artifacts),
        "versions": len(package.versions),
        "labels": sum(len(one.labels) for one in package.manifest.artifacts),
        "label_moves": sum(len(one.label_history) for one in package.manifest.artifacts),
        "bytes": len(data),
        "import_s": round(took, 3),
        "blobs_equal": blobs == wanted,
        "labels_equal": _labels(again) == _labels(package.manifest),
        "manifests_equal": _comparable(again) == _comparable(package.manifest),
        "first_import": first.versions,
        "second_import_changes": second.versions + second.labels + second.sealed,
    }


async def _go(
    db: Database, package: Package
) -> tuple[str, ImportReport, ImportReport, float, bytes]:
    target = await create_project(db, "elsewhere")
    reports: list[ImportReport] = []
    began = time.perf_counter()
    took = 0.0
    for _ in range(2):
        async with db.transaction(target) as session:
            reports.append(await import_package(session, target, package, _BY))
        took = took or time.perf_counter() - began
    return target, reports[0], reports[1], took, await _take_out(db, target)


def _labels(manifest: Manifest) -> list[Any]:
    return [[one.kind, one.name, one.labels, one.label_history] for one in manifest.artifacts]


def _comparable(manifest: Manifest) -> dict[str, Any]:
    # Trajectories do not travel on, so their files are not in the second export.
    return manifest.model_dump(exclude={"moment", "project", "rollouts"})


async def _take_out(db: Database, project_id: str) -> bytes:
    target = io.BytesIO()
    async with db.snapshot(project_id) as session:
        await export_project(session, project_id, target, ExportOptions())
    return target.getvalue()


async def _make(db: Database, agents: int, versions: int) -> str:
    """A project with something of everything."""
    project = await create_project(db, "made-here")
    for place in range(agents):
        async with db.transaction(project) as session:
            await _make_agent(session, project, f"agent-{place}", versions)
            files = {"SKILL.md": f"---\nname: s{place}\ndescription: skill {place}\n---\nDo.\n"}
            content, media_type = encode_content({"files": dict(files)})
            ref = ArtifactRef(project, "skill", f"s{place}")
            await create_version(session, ref, Draft(content, media_type, _BY))
            tasks = [_task(place, number) for number in range(50)]
            await create_task_set(session, project, f"tasks-{place}", tasks, author=_BY)
    return project


async def _make_agent(session: Any, project: str, name: str, versions: int) -> None:
    for version in range(1, versions + 1):
        lessons: list[JsonValue] = [
            {"id": f"l{n}", "text": f"lesson {n} of {version}"} for n in range(20)
        ]
        candidate = Candidate(
            components={
                "instructions": Component(
                    kind="instructions", content=f"Be {name}, {version}. 世界"
                ),
                "lessons": Component(kind="lessons", content={"entries": lessons}),
            },
            harness=Harness(model="scripted/x"),
        )
        await save_agent(session, project, name, candidate, author=_BY)
        move = LabelMove("production", version, ANY, f"promoted {version}", role="admin")
        await move_label(session, ArtifactRef(project, "agent", name), move, _BY)


def _task(place: int, number: int) -> Task:
    split: Split = ("train", "validation", "sealed")[number % 3]
    return Task(
        id=f"t{number}",
        input=f"What is {place} plus {number}?",
        split=split,
        group=f"g{number}",
        verifier=VerifierSpec(name="exact", config={"answer": str(place + number)}),
    )


if __name__ == "__main__":
    sys.exit(main())
