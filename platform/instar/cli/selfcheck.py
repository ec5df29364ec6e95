"""``instar selfcheck``: evolvers on worlds with a known answer; exits with 1 if a promise fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import typer

from instar.cli.output import Json, emit, say, table

__all__ = ["main", "selfcheck"]

_RATES = ("name", "runs", "nights", "false_promotion_rate", "proposals_tested", "pairs_median")
_LESSONS = ("name", "runs", "promotion_rate", "true_gain_median", "helpful_recall", "harmful_kept")


def selfcheck(
    world: Annotated[str, typer.Argument(help="null, lottery or planted.")],
    evolver: Annotated[
        str, typer.Option(help="Evolvers by name, separated by commas, or 'all'.")
    ] = "all",
    runs: Annotated[
        int | None, typer.Option(help="Runs per evolver; 200, or 24 on planted, by default.")
    ] = None,
    nights: Annotated[int, typer.Option(help="Nights per run, in one epoch of tests.")] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Draws the worlds; drawn anew and printed by default.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    as_json: Json = False,
) -> None:
    """Prove on worlds with known answers that false gains are not promoted."""
    from instar_evolvers.registry import list_evolvers
    from instar_evolvers.selfcheck import run_selfcheck
    from instar_evolvers.selfcheck.verdict import broken_promises

    names = list_evolvers() if evolver == "all" else [name for name in evolver.split(",") if name]
    report = run_selfcheck(world, names, runs=runs, nights=nights, seed=seed, processes=processes)
    emit(report, as_json, _words(report))
    broken = broken_promises(report)
    for promise in broken:
        say(f"not kept: {promise}")
    if broken:
        raise typer.Exit(1)


def _words(report: Mapping[str, Any]) -> str:
    rows = cast("Sequence[Mapping[str, Any]]", report["evolvers"])
    lines = [
        f"World {report['world']}, seed {report['seed']}.",
        table(rows, _LESSONS if report["world"] == "planted" else _RATES),
        f"Controls on {report['control_world']}: argmax promotes falsely in "
        f"{report['controls']['argmax']:.0%} of runs, a true gain of {report['quoted_effect']:.3f} "
        f"is accepted in {report['controls']['oracle']:.0%}.",
    ]
    if "pooled_upper" in report:
        lines.append(f"False promotions, all runs together: at most {report['pooled_upper']:.1%}.")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Parses the command's own options and runs it; the exit code."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name="selfcheck")(selfcheck)
    try:
        app(arguments, prog_name="instar selfcheck", standalone_mode=True)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0
