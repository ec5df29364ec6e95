"""Backup and restore as a check: ``python -m benchmarks.restore --json``.

Starts a service in a fresh data directory with a scripted model, saves an agent with versions,
labels and a secret, and calls it. Then it takes an encrypted backup while the service runs,
restores it into an empty directory, starts there, and calls again: the answer, the version ids,
every count and hash must be the same, and the audit chain must hold. ``--demo-dir`` takes an
installation that the demo made instead.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.demo import free_ports

__all__ = ["main"]

_SCRIPT = {"rules": [{"match": "(.*)", "where": "system", "reply": "I follow: \\1"}]}
_QUESTION = "Where does this letter go?"
_PASSPHRASE = "six random words are quite enough"  # noqa: S105 - of a backup that is deleted
_NEEDED = ("same_answer", "same_version_ids", "hashes_equal", "audit_ok", "secret_kept")


class Machine:
    """One data directory with its own ports."""

    def __init__(self, data_dir: Path, *, scripts: Path | None, models: Path | None = None) -> None:
        api, engine = free_ports(2)
        self.data_dir = data_dir
        self.models = models
        self.ran_before = False
        self.url = f"http://127.0.0.1:{api}"
        self.environment = {
            **os.environ,
            "INSTAR_DATA_DIR": str(data_dir),
            "INSTAR_API__PORT": str(api),
            "INSTAR_ENGINE__PORT": str(engine),
            "INSTAR_URL": self.url,
            # A demo's agent speaks through the local engine, a scripted one needs none.
            "INSTAR_ENGINE__ENABLED": "false" if scripts is not None else "true",
        }
        if scripts is not None:
            self.environment["INSTAR_MODELS__SCRIPTS_DIR"] = str(scripts)

    def instar(self, *words: str) -> Any:
        """One command's JSON answer."""
        done = subprocess.run(
            [sys.executable, "-m", "instar", *words, "--json"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"`instar {' '.join(words)}` ended with {done.returncode}")
        return json.loads(done.stdout)

    def start(self) -> None:
        """Starts the service, or finds it; weights are linked, for a backup does not hold them."""
        from instar.embedded.layout import Layout
        from instar.embedded.status import read_status

        running = read_status(Layout(self.data_dir).status)
        if running is not None and running.alive:
            self.ran_before, self.url = True, running.api
            self.environment["INSTAR_URL"] = running.api
            return
        if self.models is not None and not (self.data_dir / "models").exists():
            (self.data_dir / "models").symlink_to(self.models, target_is_directory=True)
        self.instar("up", "--detach")

    def stop(self) -> None:
        """Stops it, whatever state it is in, unless it ran before."""
        if self.ran_before:
            return
        subprocess.run(
            [sys.executable, "-m", "instar", "down"],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            check=False,
        )

    def client(self) -> httpx.Client:
        """A client with this machine's own key."""
        key = (self.data_dir / "api.key").read_text(encoding="ascii").strip()
        return httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=300,
            trust_env=False,
        )


def _fill(machine: Machine) -> str:
    """An agent of three versions, two labels, and a secret; its name."""
    with machine.client() as client:
        for number in range(1, 4):
            body = {
                "name": "desk",
                "components": {
                    "instructions": {"kind": "instructions", "content": f"rule {number}"}
                },
                "harness": {"model": "scripted/desk"},
                "label": "production" if number < 3 else "staging",
            }
            client.post("/v1/agents", json=body).raise_for_status()
        secret = {"value": "only-for-this-check"}
        client.put("/v1/secrets/desk.key", json=secret).raise_for_status()
    return "desk"


def _observe(machine: Machine, agent: str, question: str) -> dict[str, Any]:
    """What the agent answers, and which versions there are."""
    with machine.client() as client:
        reply = client.post(
            "/v1/chat/completions",
            json={
                "model": f"agent/{agent}@production",
                "messages": [{"role": "user", "content": question}],
            },
        )
        reply.raise_for_status()
        versions = client.get(f"/v1/agents/{agent}/versions", params={"limit": 100})
        versions.raise_for_status()
        secrets = client.get("/v1/secrets", params={"limit": 100})
        secrets.raise_for_status()
        labels = client.get(f"/v1/agents/{agent}").raise_for_status().json()["labels"]
    document = reply.json()
    return {
        "answer": document["choices"][0]["message"]["content"],
        "answered_by": document["system_fingerprint"],
        "versions": sorted(
            (one["number"], one["id"], one["digest"]) for one in versions.json()["data"]
        ),
        "labels": labels,
        "secrets": sorted(one["id"] for one in secrets.json()["data"]),
    }


def _check(root: Path, first: Machine, second: Machine, demo: bool) -> dict[str, Any]:
    """The whole way; the report."""
    first.start()
    agent = "support-desk" if demo else _fill(first)
    before = _observe(first, agent, _QUESTION)
    words = root / "passphrase"
    words.write_text(_PASSPHRASE + "\n", encoding="utf-8")
    target = root / "instar.backup"
    began = time.monotonic()
    taken = first.instar("backup", str(target), "--passphrase-file", str(words))
    backup_s = time.monotonic() - began
    first.stop()
    began = time.monotonic()
    options = ("--passphrase-file", str(words), "--keys", str(first.data_dir))
    restored = second.instar("restore", str(target), *options)
    restore_s = time.monotonic() - began
    second.start()
    after = _observe(second, agent, _QUESTION)
    audit = second.instar("audit", "verify")
    return {
        "agent": agent,
        "same_answer": before["answer"] == after["answer"],
        "same_version_ids": [before["versions"], before["answered_by"], before["labels"]]
        == [after["versions"], after["answered_by"], after["labels"]],
        "secret_kept": before["secrets"] == after["secrets"] and (demo or bool(after["secrets"])),
        "versions": len(after["versions"]),
        "tables": restored["tables"],
        "rows": restored["rows"],
        "hashes_equal": restored["hashes_equal"],
        "audit_ok": audit["ok"],
        "audit_rows": audit["rows"],
        "encrypted": taken["encrypted"],
        "backup_bytes": taken["bytes"],
        "backup_s": round(backup_s, 2),
        "restore_s": round(restore_s, 2),
    }


def main(argv: list[str] | None = None) -> int:
    """Runs the check and prints its report as JSON; returns 0 when everything is the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document (always done)")
    parser.add_argument("--demo-dir", type=Path, help="a data directory that `instar demo` made")
    options = parser.parse_args(argv)
    root = Path(tempfile.mkdtemp(prefix="instar-restore-"))
    root.chmod(0o711)
    scripts = None if options.demo_dir else root / "scripts"
    if scripts is not None:
        scripts.mkdir()
        (scripts / "desk.json").write_text(json.dumps(_SCRIPT), encoding="utf-8")
    source = (options.demo_dir or root / "first").expanduser().absolute()
    models = source / "models" if options.demo_dir else None
    first = Machine(source, scripts=scripts)
    second = Machine(root / "second", scripts=scripts, models=models)
    try:
        report = _check(root, first, second, bool(options.demo_dir))
    finally:
        for machine in (first, second):
            machine.stop()
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps(report, ensure_ascii=False, indent=2))
    return 0 if all(report[name] is True for name in _NEEDED) else 1


if __name__ == "__main__":
    sys.exit(main())
