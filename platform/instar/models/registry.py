"""Registry: from a model's name to a client for it, and whether it is ready to be used."""

from __future__ import annotations

import httpx

from instar.engine.weights import CHAT_MODEL
from instar.models.base import ModelClient
from instar.models.endpoints import require_key, resolve_endpoint
from instar.models.litellm_client import LitellmClient
from instar.models.local_client import LocalClient
from instar.models.scripted import ScriptedClient, read_script
from instar.settings import Settings
from instar_core.errors import PrerequisiteError

__all__ = ["check_model", "open_model", "why_no_proposer"]

_TOO_SMALL = {CHAT_MODEL: "135 million parameters"}
"""Local models that follow demonstrations but cannot reflect, and how large they are."""


def open_model(name: str, settings: Settings) -> ModelClient:
    """A client for the model; nothing is contacted and nothing heavy imported yet.

    Args:
        name: ``local/smollm2-135m-instruct``, ``scripted/<name>``, or ``<provider>/<model>``.
        settings: Addresses, retries, prices.

    Raises:
        UserError: If no such model or provider exists; says what is allowed.
    """
    endpoint = resolve_endpoint(name, settings)
    if endpoint.kind == "local":
        return LocalClient(endpoint, settings)
    if endpoint.kind == "scripted":
        return ScriptedClient(endpoint, settings)
    return LitellmClient(endpoint, settings)


def why_no_proposer(name: str, settings: Settings) -> str:
    """Why a model cannot reflect on attempts and write lessons; empty where it may well can.

    Args:
        name: As for :func:`open_model`.
        settings: Addresses.

    Raises:
        UserError: If the name is wrong.
    """
    endpoint = resolve_endpoint(name, settings)
    size = _TOO_SMALL.get(endpoint.model) if endpoint.kind == "local" else None
    return "" if size is None else f"{name!r} is too small to reflect ({size})"


async def check_model(name: str, settings: Settings) -> None:
    """Checks before anything is scheduled that the model could be asked now.

    Args:
        name: As for :func:`open_model`.
        settings: Addresses.

    Raises:
        UserError: If the name is wrong.
        PrerequisiteError: If a key is missing, or the engine is away or has no model.
    """
    endpoint = resolve_endpoint(name, settings)
    if endpoint.kind == "scripted":
        read_script(endpoint.model, settings)
    elif endpoint.kind == "local":
        await _check_engine(endpoint.api_base or "")
    else:
        require_key(endpoint)


async def _check_engine(base: str) -> None:
    try:
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
            response = await client.get(f"{base}/healthz")
        report = response.json()
        state, reason = str(report["state"]), str(report["reason"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise PrerequisiteError(
            f"the local engine does not answer at {base} ({type(error).__name__}).",
            remedy="Start it with: instar up",
        ) from error
    if state != "ready":
        raise PrerequisiteError(
            f"the local engine at {base} is not ready to serve {CHAT_MODEL!r}: {reason or state}.",
            remedy="Wait a moment if it is loading." if state == "loading" else "",
        )
