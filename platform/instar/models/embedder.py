"""Embedder: unit vectors of texts from the engine."""

from __future__ import annotations

from collections.abc import Sequence

from instar.engine.weights import EMBEDDING_MODEL, EMBEDDING_SHA256
from instar.models.base import Embedder
from instar.models.endpoints import resolve_endpoint
from instar.models.local_client import EngineConnection
from instar.settings import Settings
from instar_core.errors import UserError

__all__ = ["EngineEmbedder", "open_embedder"]

_PER_REQUEST = 256


class EngineEmbedder:
    """all-MiniLM-L6-v2 in the engine; 384 numbers a text.

    Args:
        base: The engine's address.
        settings: Time-outs.

    Attributes:
        digest: Names the weights; stored vectors are keyed by it.
    """

    def __init__(self, base: str, settings: Settings) -> None:
        self.digest = f"{EMBEDDING_MODEL}@{EMBEDDING_SHA256[:16]}"
        self._connection = EngineConnection(base, settings)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors for the texts, in order. Raises as ``EngineConnection.post``."""
        vectors: list[list[float]] = []
        for start in range(0, len(texts), _PER_REQUEST):
            part = list(texts[start : start + _PER_REQUEST])
            answer = await self._connection.post(
                "/v1/embeddings", {"model": EMBEDDING_MODEL, "input": part}
            )
            vectors += [entry["embedding"] for entry in answer["data"]]
        return vectors

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._connection.aclose()


def open_embedder(settings: Settings) -> Embedder:
    """The embedder that the settings name.

    Raises:
        UserError: If ``models.embedder`` names something else than the engine's.
    """
    wanted = f"local/{EMBEDDING_MODEL}"
    if settings.models.embedder != wanted:
        raise UserError(
            f"unknown embedder {settings.models.embedder!r}; allowed: {wanted!r}.",
            remedy=f"Set INSTAR_MODELS__EMBEDDER={wanted} or leave it unset.",
        )
    return EngineEmbedder(resolve_endpoint(wanted, settings).api_base or "", settings)
