"""Many writers at once, from real processes; and the measurements run on a small scale."""

from __future__ import annotations

import pytest

from benchmarks import registry, registry_parallel
from instar.store.testing import MigratedDatabase

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def test_s9_parallel_saves_and_moves_from_processes_lose_nothing(
    database: MigratedDatabase,
) -> None:
    found = registry_parallel.run_parallel(database, saves=40, moves=40, processes=4)
    assert found == {
        "processes": 4,
        "saves": 40,
        "versions": 40,
        "consecutive": True,
        "moves": 40,
        "winners": 10,
        "winners_ok": True,
        "audit_ok": True,
    }


def test_the_benchmark_compares_every_measure_with_its_baseline() -> None:
    found = registry.measure(turns=6, small=1_000, large=2_000)
    assert set(found) == set(registry.MEASURES)
    for name in ("resolve", "save", "list"):
        assert found[name]["limit"] == registry.LIMITS[name]
        assert found[name]["ms"] > 0 and found[name]["baseline_ms"] > 0
