"""``make bench``: runs every benchmark side by side in this process and writes its results.

Each benchmark is a module of this folder with ``measure() -> dict``; its result goes to
``benchmarks/results/NAME.json`` with the machine it was measured on. Speed is given as ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["BENCHMARKS", "main", "write_result"]

BENCHMARKS = ("statistics_speed", "lab_speed", "registry", "registry_parallel")
RESULTS = Path(__file__).parent / "results"


def write_result(name: str, result: dict[str, Any]) -> Path:
    """Writes a result beside what it was measured on; returns the file."""
    RESULTS.mkdir(exist_ok=True)
    machine = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }
    document = {
        "benchmark": name,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "result": result,
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def main(argv: list[str] | None = None) -> int:
    """Runs the named benchmarks, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all when left out")
    options = parser.parse_args(argv)
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        print(f"No benchmark is named {sorted(unknown)}; there are {sorted(BENCHMARKS)}.")
        return 2
    for name in options.names or BENCHMARKS:
        result = import_module(f"benchmarks.{name}").measure()
        print(f"{write_result(name, result)}: {json.dumps(result)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
