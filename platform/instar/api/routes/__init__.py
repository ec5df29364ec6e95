"""Routes, one module per area; each at most fifteen lines, over functions that know no HTTP."""

from __future__ import annotations

from instar.api.routes import (
    agents,
    api_keys,
    artifact_labels,
    artifact_versions,
    artifacts,
    audit,
    auth,
    chat,
    evolution,
    health,
    history,
    mcp_servers,
    project,
    projects,
    promotions,
    proposals,
    runs,
    secrets,
    task_sets,
    transfer,
    users,
)

__all__ = ["ROUTERS"]

ROUTERS = (
    health.router,
    agents.router,
    runs.router,
    task_sets.router,
    evolution.router,
    proposals.router,
    promotions.router,
    history.router,
    artifact_versions.router,
    artifact_labels.router,
    artifacts.router,
    audit.router,
    mcp_servers.router,
    project.router,
    auth.router,
    users.router,
    projects.router,
    api_keys.router,
    secrets.router,
    transfer.router,
    chat.router,
)
