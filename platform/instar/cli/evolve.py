"""``instar evolve``: quote, start, follow and cancel runs; decide what they propose."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from instar.cli.client import Client, path_of
from instar.cli.output import Json, check_id, emit, in_words, table
from instar_core.errors import UserError

__all__ = ["app"]

app = typer.Typer(
    help="Evolve an agent: quote, start, status, cancel, decide, undo.", no_args_is_help=True
)

_Agent = Annotated[str, typer.Argument(help="Name of the agent.")]
_TaskSet = Annotated[str, typer.Option("--tasks", help="Name of the task set.")]
_Evolver = Annotated[str, typer.Option(help="Name of the evolver.")]
_Config = Annotated[str, typer.Option("--config", help="Evolver's configuration as JSON.")]
_Rollouts = Annotated[int | None, typer.Option(min=1, help="Most rollouts of the run.")]
_Cost = Annotated[float | None, typer.Option("--cost-usd", min=0.0, help="Most US dollars.")]
_Seconds = Annotated[float | None, typer.Option("--seconds", min=1.0, help="Most seconds.")]
_Seed = Annotated[int, typer.Option(min=0, help="Seed of the run's random choices.")]
_Proposer = Annotated[
    str, typer.Option("--proposer", help="Model that proposes changes; else the agent's own.")
]
_RunId = Annotated[str, typer.Argument(help="Id of the run.")]


def _spec(  # noqa: PLR0913 - one value per option of the command line
    agent: str,
    tasks: str,
    evolver: str,
    config: str,
    rollouts: int | None,
    cost_usd: float | None,
    seconds: float | None,
    seed: int,
    proposer: str,
) -> dict[str, Any]:
    """The body that asks for a run."""
    import json

    try:
        parsed = json.loads(config)
    except ValueError as error:
        raise UserError(
            f"--config is not JSON: {error}.", remedy="Write for example --config '{\"k\": 2}'."
        ) from error
    return {
        "agent": agent,
        "task_set": tasks,
        "evolver": evolver,
        "evolver_config": parsed,
        "limit": {"rollouts": rollouts, "cost_usd": cost_usd, "wall_s": seconds},
        "seed": seed,
        "model": proposer or None,
    }


@app.command()
def quote(  # noqa: PLR0913 - one value per option of the command line
    agent: _Agent,
    tasks: _TaskSet,
    evolver: _Evolver = "bootstrap",
    config: _Config = "{}",
    rollouts: _Rollouts = None,
    cost_usd: _Cost = None,
    seconds: _Seconds = None,
    seed: _Seed = 0,
    proposer: _Proposer = "",
    json: Json = False,
) -> None:
    """Say what a run would take and the smallest gain it could detect. Nothing is started."""
    body = _spec(agent, tasks, evolver, config, rollouts, cost_usd, seconds, seed, proposer)
    found = Client().post(path_of("evolution", "quote"), body)
    emit(found, json, _quote_words(found))


def _quote_words(quote: dict[str, Any]) -> str:
    limit, expected = quote["limit"], quote["expected"]
    effect = quote.get("smallest_detectable_effect")
    lines = [
        f"expected: {expected['rollouts']} rollouts, {expected['tokens']} tokens, "
        f"${expected['cost_usd']:.4f}, {expected['wall_s']:.0f} s",
        f"at most:  {limit['rollouts']} rollouts, {limit['tokens']} tokens, "
        f"${limit['cost_usd']:.4f}, {limit['wall_s']:.0f} s",
        f"sealed test: {quote['sealed_pairs']} pairs at level {quote['alpha_t']:.3g}",
        "smallest gain found with 80 % power: "
        + (f"{effect:.3f}" if effect is not None else "none: too few pairs"),
    ]
    probes = quote.get("probes") or {}
    if probes.get("rollouts"):
        lines.append(
            f"measured by {probes['rollouts']} probes: {probes['tokens']} tokens, "
            f"${probes['cost_usd']:.4f}, {probes['wall_s']:.1f} s (spent, outside the run)"
        )
    lines += [f"note: {words}" for words in quote.get("warnings", ())]
    return "\n".join(lines)


@app.command()
def start(  # noqa: PLR0913 - one value per option of the command line
    agent: _Agent,
    tasks: _TaskSet,
    evolver: _Evolver = "bootstrap",
    config: _Config = "{}",
    rollouts: _Rollouts = None,
    cost_usd: _Cost = None,
    seconds: _Seconds = None,
    seed: _Seed = 0,
    proposer: _Proposer = "",
    json: Json = False,
) -> None:
    """Start a run in the background."""
    body = _spec(agent, tasks, evolver, config, rollouts, cost_usd, seconds, seed, proposer)
    found = Client().post(path_of("evolution", "runs"), body)
    emit(found, json, f"run {found['id']} is {found['state']}")


@app.command()
def status(
    run: Annotated[str, typer.Argument(help="Id of a run; all runs when left out.")] = "",
    json: Json = False,
) -> None:
    """Show one run, or all of them."""
    if not run:
        rows = list(Client().pages(path_of("evolution", "runs")))
        columns = ("id", "agent", "evolver", "state", "phase", "rollouts_done", "verdict")
        emit(rows, json, table(rows, columns))
        return
    check_id(run, "run", "instar evolve status")
    found = Client().get(path_of("evolution", "runs", run))
    emit(found, json, _status_words(found))


def _status_words(run: dict[str, Any]) -> str:
    lines = [f"run {run['id']}: {run['state']} ({run['phase']})"]
    if run.get("reason"):
        lines.append(f"reason: {run['reason']}")
    if run.get("worker"):
        lines.append(f"worker: {run['worker']}, last heard {in_words(run['heartbeat_at'])}")
    if run.get("last_error") and run["last_error"] != run.get("reason"):
        lines.append(f"last error: {run['last_error']}")
    lines.append(
        f"{run['rollouts_done']} of {run['rollouts_planned']} rollouts, {run['tokens']} tokens, "
        f"${run['cost_usd']:.4f}, {run['wall_s']:.0f} s"
    )
    for name, words in (("baseline_mean", "before"), ("best_mean", "best on validation")):
        if run.get(name) is not None:
            lines.append(f"{words}: {run[name]:.3f}")
    if run.get("verdict"):
        words = str(run.get("verdict_words") or "")
        if words in (run.get("reason") or ""):
            words = ""
        lines.append(f"verdict: {run['verdict']}. {words}".strip())
    for name in ("proposal_id", "promotion_id"):
        if run.get(name):
            lines.append(f"{name.removesuffix('_id')}: {run[name]}")
    return "\n".join(lines)


@app.command()
def cancel(run: _RunId, json: Json = False) -> None:
    """Ask a run to stop; what it recorded stays."""
    found = Client().post(path_of("evolution", "runs", run, "cancel"))
    stops = found["state"] in ("queued", "running")
    words = "was asked to stop; it ends in a moment" if stops else f"is {found['state']}"
    emit(found, json, f"run {run} {words}")


@app.command()
def proposals(json: Json = False) -> None:
    """List what runs have put forward."""
    rows = list(Client().pages(path_of("proposals")))
    columns = ("id", "agent", "label", "state", "verdict", "created_at")
    emit(rows, json, table(rows, columns))


@app.command()
def approve(
    proposal: Annotated[str, typer.Argument(help="Id of the proposal.")],
    why: Annotated[str, typer.Option(help="Reason, kept with the decision.")] = "",
    json: Json = False,
) -> None:
    """Approve a proposal: its version is promoted."""
    found = Client().post(path_of("proposals", proposal, "approve"), {"note": why})
    words = f"{found['agent']}: {found['label']} names version {found['to_version']} now"
    emit(found, json, f"{words} (promotion {found['id']}, {found['state']})")


@app.command()
def reject(
    proposal: Annotated[str, typer.Argument(help="Id of the proposal.")],
    why: Annotated[str, typer.Option(help="Reason, kept with the decision.")] = "",
    json: Json = False,
) -> None:
    """Reject a proposal: nothing changes in production."""
    found = Client().post(path_of("proposals", proposal, "reject"), {"note": why})
    emit(found, json, f"proposal {proposal} is {found['state']}")
