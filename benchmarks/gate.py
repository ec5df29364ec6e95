"""The gate: the *Show* commands of every issue so far at reduced size, each promise checked.

``make gate`` runs it (at most 15 minutes on two cores). At reduced size the statistical bars are
widened only as far as chance needs: a bar of 10 in 200 becomes the count that a true rate of 5 %
exceeds once in a thousand runs of that size.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Check", "checks", "main", "most_false_promotions"]

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One Show command: its arguments, and the function that lists what its report breaks."""

    name: str
    command: tuple[str, ...]
    faults: Callable[[Report], list[str]]


def most_false_promotions(runs: int, rate: float = 0.05, tail: float = 0.001) -> int:
    """The smallest count that a binomial(runs, rate) exceeds with probability below ``tail``."""
    left = 1.0
    for count in range(runs + 1):
        left -= math.comb(runs, count) * rate**count * (1 - rate) ** (runs - count)
        if left < tail:
            return count
    return runs


def _no_false_gains(report: Report) -> list[str]:
    faults = []
    for row in report["evolvers"]:
        allowed = most_false_promotions(row["runs"])
        promoted = round(row["false_promotion_rate"] * row["runs"])
        if promoted > allowed:
            faults.append(f"{row['name']}: {promoted} of {row['runs']} promoted, {allowed} allowed")
    controls = report["controls"]
    if controls["argmax"] < 0.5:
        faults.append(f"control argmax promotes falsely in {controls['argmax']:.2f}, needs ≥ 0.5")
    if controls["oracle"] < 0.65:
        faults.append(f"control oracle is accepted in {controls['oracle']:.2f}, needs ≥ 0.65 here")
    return faults


def _planted_found(report: Report) -> list[str]:
    faults = []
    for row in report["evolvers"]:
        if row["helpful_recall"] < 0.85:
            faults.append(f"{row['name']}: helpful recall {row['helpful_recall']:.2f} < 0.85")
        if row["harmful_kept"] > 0.04:
            faults.append(f"{row['name']}: harmful kept {row['harmful_kept']:.3f} > 0.04")
    return faults


def _nothing_lost(report: Report) -> list[str]:
    wanted = {"identical": True, "recorded_repaid": 0, "overshoot": 0}
    faults = [
        f"{key} is {report.get(key)!r}, must be {value!r}"
        for key, value in wanted.items()
        if report.get(key) != value
    ]
    if report.get("error"):
        faults.append(str(report["error"]))
    return faults


def _demo_holds(report: Report) -> list[str]:
    faults = []
    if report.get("state") not in ("succeeded", "no_improvement"):
        faults.append(f"the demo's run ended as {report.get('state')!r}: {report.get('reason')}")
    if not report.get("calls"):
        faults.append("the agent was not called through REST")
    if report.get("state") == "succeeded" and not report.get("openai", {}).get("changed"):
        faults.append(f"roll back did not change the answering version: {report.get('openai')}")
    return faults


def _must_be(**wanted: Any) -> Callable[[Report], list[str]]:
    """Faults of a report in which some values must be just these."""

    def faults(report: Report) -> list[str]:
        return [
            f"{key} is {report.get(key)!r}, must be {value!r}"
            for key, value in wanted.items()
            if report.get(key) != value
        ]

    return faults


def _tampering_named(report: Report) -> list[str]:
    faults = _must_be(untouched_ok=True)(report)
    missed = [kind for kind, found in report["kinds"].items() if not found]
    if missed or len(report["kinds"]) < 6:
        faults.append(f"of {len(report['kinds'])} kinds of tampering not named: {missed}")
    return faults


def checks() -> list[Check]:
    """The checks of every issue so far, in the order of the issues."""
    instar = (sys.executable, "-m", "instar")
    null = ("--evolver", "bootstrap,tf_grpo", "--runs", "40", "--json")
    return [
        Check("selfcheck null", (*instar, "selfcheck", "null", *null), _no_false_gains),
        Check("selfcheck lottery", (*instar, "selfcheck", "lottery", *null), _no_false_gains),
        Check(
            "selfcheck planted",
            (*instar, "selfcheck", "planted", "--evolver", "tf_grpo", "--runs", "8", "--json"),
            _planted_found,
        ),
        Check(
            "crash",
            (sys.executable, "-m", "benchmarks.crash", "--kills", "4", "--json"),
            _nothing_lost,
        ),
        Check("demo", (sys.executable, "-m", "benchmarks.demo", "--json"), _demo_holds),
        Check(
            "many writers",
            (sys.executable, "-m", "benchmarks.registry_parallel", "--json"),
            _must_be(saves=200, versions=200, consecutive=True, winners_ok=True, audit_ok=True),
        ),
        Check(
            "audit tampering",
            (sys.executable, "-m", "benchmarks.audit_tampering", "--rows", "2000", "--json"),
            _tampering_named,
        ),
        Check(
            "export and import",
            (sys.executable, "-m", "benchmarks.transfer", "--json"),
            _must_be(
                blobs_equal=True, labels_equal=True, manifests_equal=True, second_import_changes=0
            ),
        ),
        Check(
            "backup and restore",
            (sys.executable, "-m", "benchmarks.restore", "--json"),
            _must_be(
                same_answer=True,
                same_version_ids=True,
                secret_kept=True,
                hashes_equal=True,
                audit_ok=True,
                encrypted=True,
            ),
        ),
    ]


def _run(check: Check, limit_s: float) -> list[str]:
    try:
        done = subprocess.run(
            check.command, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return [f"did not end within {limit_s:.0f} s"]
    if done.returncode != 0:
        return [f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}"]
    start = done.stdout.find("{")
    try:
        report = json.loads(done.stdout[start:])
    except ValueError:
        return [f"printed no JSON: {done.stdout[-500:]!r}"]
    return check.faults(report)


def main(argv: list[str] | None = None) -> int:
    """Runs the checks; returns 0 when every promise holds.

    The last line is ``N passed, N failed``.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of checks to run, comma-separated")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one check")
    options = parser.parse_args(argv)
    only = {name.strip() for name in options.only.split(",") if name.strip()}
    known = {check.name for check in checks()}
    if only - known:
        print(f"No check is named {sorted(only - known)}; there are {sorted(known)}.")
        return 2
    passed = failed = 0
    for check in checks():
        if only and check.name not in only:
            continue
        started = time.monotonic()
        faults = _run(check, options.limit)
        spent = time.monotonic() - started
        print(f"{'FAIL' if faults else 'ok':4} {check.name} ({spent:.0f} s)", flush=True)
        for fault in faults:
            print(f"     {fault}", flush=True)
        passed, failed = passed + (not faults), failed + bool(faults)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
