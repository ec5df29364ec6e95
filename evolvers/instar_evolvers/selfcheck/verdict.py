"""Verdict: which promises a selfcheck's numbers do not keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["broken_promises"]

_FALSE_RATE = 0.05
_ARGMAX = 0.5
_ORACLE = 0.8
_RECALL = 0.9
_HARMFUL = 0.02
# Below this many runs a rate is too coarse to be held against anyone.
_ENOUGH_RUNS = 100
_ENOUGH_WORLDS = 20


def broken_promises(report: Mapping[str, Any]) -> list[str]:
    """What a report of :func:`~instar_evolvers.selfcheck.report.run_selfcheck` fails to show.

    Rates of false promotion and the controls are judged from 100 runs on, lessons from 20 worlds
    on. The limit is one per epoch, so it holds for any number of nights up to 50.

    Returns:
        One sentence per promise that is not kept; empty when all are.
    """
    broken = []
    for name, least in (("argmax", _ARGMAX), ("oracle", _ORACLE)):
        rate = report["controls"][name]
        if report["control_runs"] >= _ENOUGH_RUNS and rate < least:
            broken.append(f"control {name} promoted in {rate:.1%} of runs, expected {least:.0%}")
    for row in report["evolvers"]:
        if report["world"] == "planted":
            broken += _lessons(row) if row["runs"] >= _ENOUGH_WORLDS else []
        elif row["runs"] >= _ENOUGH_RUNS and row["false_promotion_rate"] > _FALSE_RATE:
            rate = row["false_promotion_rate"]
            broken.append(f"{row['name']} promoted falsely in {rate:.1%} of runs, allowed 5 %")
    total = sum(row["runs"] for row in report["evolvers"])
    if total >= _ENOUGH_RUNS and report.get("pooled_upper", 0.0) > _FALSE_RATE:
        limit = report["pooled_upper"]
        broken.append(f"false promotions may be as many as {limit:.1%}, allowed 5 %")
    return broken


def _lessons(row: Mapping[str, Any]) -> list[str]:
    broken = []
    if row.get("helpful_recall", 1.0) < _RECALL:
        broken.append(f"{row['name']} kept {row['helpful_recall']:.1%} of helpful lessons")
    if row.get("harmful_kept", 0.0) > _HARMFUL:
        broken.append(f"{row['name']} kept {row['harmful_kept']:.1%} of harmful lessons")
    return broken
