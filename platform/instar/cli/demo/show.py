"""What the demo prints: steps, progress bars with spend, the quote, and the table at the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = ["Bars", "Show"]


class Bars:
    """Progress of a run: rollouts done of planned, with tokens and money spent so far."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task("waiting", total=None, spend="")

    def event(self, event: dict[str, Any]) -> None:
        """Prints an event's words above the bar."""
        self._progress.console.print(f"  {event['message']}", highlight=False, markup=False)

    def update(self, run: dict[str, Any]) -> None:
        """Moves the bar to where the run stands."""
        spend = f"{run['tokens']:,} tokens, ${run['cost_usd']:.4f}"
        self._progress.update(
            self._task,
            description=str(run["phase"]).replace("_", " "),
            completed=run["rollouts_done"],
            total=max(run["rollouts_planned"], run["rollouts_done"]) or None,
            spend=spend,
        )


class Show:
    """Prints for a person on standard error, and the report on standard output.

    Args:
        as_json: Print the report as one JSON document instead of tables.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._words = Console(stderr=True, highlight=False)
        self._out = Console(file=sys.stdout, highlight=False)
        self._last = ""

    def step(self, words: str) -> None:
        """Heads a step."""
        self._words.print(f"\n{words}", style="bold", markup=False)

    def note(self, words: str) -> None:
        """Adds a line to the step."""
        self._words.print(f"  {words}", markup=False)

    def progress(self, words: str, share: float) -> None:
        """Shows how far a longer step is; repeats nothing."""
        if words != self._last:
            self._last = words
            self.note(f"{share:4.0%} {words}")

    @contextmanager
    def bars(self) -> Iterator[Bars]:
        """Progress bars for the time of the block."""
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} rollouts"),
            TextColumn("{task.fields[spend]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._words) as progress:
            yield Bars(progress)

    def quote(self, quote: dict[str, Any]) -> None:
        """Says before the run what it will take and what it can detect."""
        expected, limit = quote["expected"], quote["limit"]
        self.step("The quote")
        self.note(
            f"expected: {expected['rollouts']} rollouts, {expected['tokens']:,} tokens, "
            f"${expected['cost_usd']:.4f}, {expected['wall_s']:.0f} s "
            f"({quote['seconds_per_rollout']:.2f} s a rollout)"
        )
        self.note(f"at most: {limit['rollouts']} rollouts, {limit['wall_s']:.0f} s")
        effect = quote.get("smallest_detectable_effect")
        found = f"+{effect:.2f}" if effect is not None else "nothing: too few pairs"
        self.note(
            f"sealed test: {quote['sealed_pairs']} pairs, bar {1 / quote['alpha_t']:.0f} : 1; "
            f"smallest gain found with 80 % power: {found}"
        )
        for words in quote.get("warnings", ()):
            self.note(f"note: {words}")

    def report(self, report: dict[str, Any], quote: dict[str, Any]) -> None:
        """Prints the table, what was learned, the calls, and where to look next."""
        if self._as_json:
            document = {**report, "quote": quote}
            print(json.dumps(document, ensure_ascii=False, indent=2), flush=True)
            return
        self._out.print()
        self._out.print(_results(report))
        if report.get("reason"):
            self._out.print(f"{report['state']}: {report['reason']}", markup=False)
        if report.get("words") and report["words"] not in (report.get("reason") or ""):
            self._out.print(report["words"], markup=False)
        self._learned(report.get("learned") or {})
        if report["calls"]:
            self._out.print(_calls(report["calls"]))
        self._out.print(
            f"\nThe service runs on at {report['address']} "
            f"(production is version {report['production_version']}). Look next:\n"
            f"  instar evolve status {report['id']}\n"
            "  instar artifact list\n"
            f"  {report['address']}/openapi.json (every route)\n"
            "  instar down (stops it)",
            markup=False,
        )

    def _learned(self, learned: dict[str, Any]) -> None:
        for name, content in learned.items():
            if content.get("pool"):
                self._out.print(
                    f"\n{name}: {len(content['pool'])} solved cases, {content['k']} shown, "
                    f"chosen as {content['retrieval']}",
                    markup=False,
                )
                for case in content["pool"][:4]:
                    calls = " ".join(
                        f"{call['name']}({', '.join(map(str, call['arguments'].values()))})"
                        for call in case["actions"]
                    )
                    self._out.print(f"  {case['input']} → {calls or case['answer']}", markup=False)
            for entry in content.get("entries", ()):
                self._out.print(f"  [{entry['id']}] {entry['text']}", markup=False)


def _results(report: dict[str, Any]) -> Table:
    table = Table(title=f"Night: {report['state']}", title_justify="left")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_column("difference")
    table.add_row(
        "validation (chosen on it)", _share(report["before"]), _share(report["after"]), ""
    )
    sealed = report.get("sealed")
    if sealed:
        low, high = sealed["interval"]
        table.add_row(
            f"sealed ({sealed['pairs']} pairs)",
            _share(sealed["incumbent_mean"]),
            _share(sealed["candidate_mean"]),
            f"{sealed['mean_difference']:+.3f}, between {low:+.3f} and {high:+.3f} "
            f"at {sealed['interval_level']:.2%}",
        )
    table.caption = (
        f"{report['rollouts']} rollouts, {report['tokens']:,} tokens, "
        f"${report['cost_usd']:.4f}, run {report['run_seconds']:.0f} s, "
        f"demo {report['seconds']:.0f} s"
    )
    table.caption_justify = "left"
    return table


def _calls(calls: list[dict[str, Any]]) -> Table:
    table = Table(title="Fresh tickets through REST", title_justify="left")
    for column in ("ticket", "queue on the live desk", "right queue"):
        table.add_column(column)
    for call in calls:
        table.add_row(call["ticket"], str(call["queue"] or "(none)"), call["expected"])
    return table


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
