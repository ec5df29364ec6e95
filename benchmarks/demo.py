"""The demo as a check: ``python -m benchmarks.demo --json`` runs it in a fresh data directory.

The whole main job on free ports: install, start, evolve, test on the sealed split, promote, call.
Then the official OpenAI client asks for ``agent/…@production``, the promotion is rolled back, and
the client asks again: the answers must come from the promoted version and then from the old one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["free_ports", "main", "model_cache"]


def free_ports(count: int) -> list[int]:
    """Ports on the loopback interface that nobody listens on now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


def model_cache() -> Path:
    """The folder that keeps the converted model between runs and tests on one machine."""
    named = os.environ.get("INSTAR_TEST_MODEL_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(named) if named else Path(base) / "instar-models"


def _environment(data_dir: Path) -> dict[str, str]:
    api, engine = free_ports(2)
    return {
        **os.environ,
        "INSTAR_DATA_DIR": str(data_dir),
        "INSTAR_API__PORT": str(api),
        "INSTAR_ENGINE__PORT": str(engine),
        "INSTAR_URL": f"http://127.0.0.1:{api}",
    }


def _instar(environment: dict[str, str], *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "instar", *words],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = {"error": f"`instar {' '.join(words)}` printed {done.stdout[-500:]!r}"}
    if done.returncode and "error" not in document:
        document["error"] = f"`instar {' '.join(words)}` ended with exit code {done.returncode}"
    return document


def _ask_openai(environment: dict[str, str], question: str) -> str:
    """Which version answers the official client."""
    from openai import OpenAI

    key = (Path(environment["INSTAR_DATA_DIR"]) / "api.key").read_text().strip()
    client = OpenAI(base_url=environment["INSTAR_URL"] + "/v1", api_key=key, max_retries=0)
    with client:
        answer = client.chat.completions.create(
            model="agent/support-desk@production",
            messages=[{"role": "user", "content": question}],
        )
    return str(answer.system_fingerprint)


def _roll_back(environment: dict[str, str], report: dict[str, Any]) -> dict[str, Any]:
    """Asks, rolls the promotion back, asks again."""
    question = report["calls"][0]["ticket"]
    result: dict[str, Any] = {"promoted": _ask_openai(environment, question)}
    rolled = _instar(environment, "artifact", "rollback", "agent", "support-desk", "--json")
    result["rollback"] = rolled.get("state") or rolled
    result["after_rollback"] = _ask_openai(environment, question)
    result["changed"] = result["promoted"] != result["after_rollback"]
    return result


def main(argv: list[str] | None = None) -> int:
    """Runs the demo and prints its report as JSON; returns 0 when everything worked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document (always done)")
    parser.add_argument("--keep", action="store_true", help="leave service and data")
    parser.add_argument("words", nargs="*", help="further options of `instar demo`, after --")
    options = parser.parse_args(argv)
    root = Path(tempfile.mkdtemp(prefix="instar-demo-"))
    root.chmod(0o755)
    environment = _environment(root / "data")
    cache = model_cache()
    (root / "data").mkdir()
    report: dict[str, Any] = {}
    try:
        from instar.models.install import install_model

        install_model(cache, lambda words, share: print(f"{share:4.0%} {words}", file=sys.stderr))
        (root / "data" / "models").symlink_to(cache / "models", target_is_directory=True)
        report = _instar(environment, "demo", "--json", *options.words)
        if report.get("promotion_id") and report.get("calls"):
            report["openai"] = _roll_back(environment, report)
    finally:
        if not options.keep:
            _instar(environment, "down", "--json")
            shutil.rmtree(root, ignore_errors=True)
    print(json.dumps(report, ensure_ascii=False, indent=2))
    return 1 if report.get("error") else 0


if __name__ == "__main__":
    sys.exit(main())
