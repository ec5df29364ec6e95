"""The evolution service: quote, start, follow and cancel runs; decide proposals; undo promotions.

The functions are what REST and the command line call; both are thin over them.
"""

from __future__ import annotations

from instar.evolution.schemas import (
    EvolutionSpec,
    PromotionView,
    ProposalView,
    RunEvent,
    RunStatus,
)

__all__ = ["EvolutionSpec", "PromotionView", "ProposalView", "RunEvent", "RunStatus"]
