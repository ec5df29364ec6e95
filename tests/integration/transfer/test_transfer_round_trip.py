"""Out of one project and into another: same numbers, bytes, hashes, labels and history."""

from __future__ import annotations

from typing import Any

from instar.store.agents import load_candidate
from instar.store.projects import create_project
from instar.store.session import Database
from tests.integration.transfer.conftest import an_agent, bring_in, manifest_of, take_out


def test_export_import_export_gives_the_same(filled: Any) -> None:
    async def go(db: Database) -> None:
        first = await take_out(db, filled.project_id)
        other = await create_project(db, "other")
        report = await bring_in(db, other, first)
        assert report.written and not report.conflicts
        second = await take_out(db, other)
        assert manifest_of(second) == manifest_of(first)
        async with db.transaction(other) as session:
            loaded = await load_candidate(session, other, "desk", "production")
        assert loaded.digest == an_agent("two").digest

    filled.run(go)
