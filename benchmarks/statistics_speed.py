"""Statistics speed: an update of the e-process against recomputing it from all pairs."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

from instar_core.statistics.eprocess import EProcess

__all__ = ["measure"]

PAIRS = 400


def measure() -> dict[str, Any]:
    """Microseconds of one update, and how often cheaper it is than starting over at each pair."""
    rng = random.Random(1)
    differences = [rng.choice((-1.0, 0.0, 1.0)) for _ in range(PAIRS)]
    started = time.perf_counter()
    process = EProcess()
    for d in differences:
        process.update(d)
    incremental = time.perf_counter() - started
    started = time.perf_counter()
    for count in range(1, PAIRS + 1):
        anew = EProcess()
        for d in differences[:count]:
            anew.update(d)
    from_scratch = time.perf_counter() - started
    return {
        "pairs": PAIRS,
        "update_us": round(incremental / PAIRS * 1e6, 2),
        "from_scratch_over_incremental": round(from_scratch / incremental, 1),
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
    sys.exit(0)
