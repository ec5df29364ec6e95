"""LabConfig: how a Lab runs its effects (widths, retries), never what it computes."""

from __future__ import annotations

from pydantic import Field

from instar_core.base import Frozen

__all__ = ["LabConfig"]


class LabConfig(Frozen):
    """Settings of one Lab. None of them changes an effect's key, so a resumed run may change
    them."""

    concurrency: int = Field(
        default=16, ge=1, description="rollouts, asks and embeddings in flight at once"
    )
    sealed_lookahead: int = Field(
        default=4, ge=1, description="pairs of a sealed test that run ahead of the one being judged"
    )
    infrastructure_retries: int = Field(
        default=2, ge=0, description="further attempts after an infrastructure failure"
    )
    retry_wait_s: float = Field(
        default=0.5, ge=0.0, description="wait before the first retry; doubles with each one"
    )
    parse_retries: int = Field(
        default=2, ge=0, description="times a reply's parse error is shown to the model"
    )
    max_sealed_tests: int = Field(
        default=1, ge=1, description="sealed tests that this run may open"
    )
