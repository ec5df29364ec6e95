"""What the demo prints: steps, progress bars with spend, the quote, and the table at the end."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

__all__ = ["COMMAND", "Bars", "Show"]

COMMAND = "instar" if shutil.which("instar") or sys.argv[0].endswith(".py") else sys.argv[0]
"""What a person types here: `make demo` runs an `instar` that is not on the search path."""
_SHOWN = {"fixed": "the same for every input", "nearest": "the most similar ones"}
_CASES = 4


class Bars:
    """Progress of a run: rollouts done of planned, with tokens and money spent so far."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task("waiting", total=None, share="", spend="")

    def event(self, event: dict[str, Any]) -> None:
        """Prints an event's words above the bar; the last ones stand in the report."""
        if event["kind"] == "ended":
            return
        self._progress.console.print(_indented(str(event["message"])))

    def update(self, run: dict[str, Any]) -> None:
        """Moves the bar to where the run stands."""
        spend = f"{run['tokens']:,} tokens, ${run['cost_usd']:.4f}"
        done, planned = run["rollouts_done"], max(run["rollouts_planned"], run["rollouts_done"])
        self._progress.update(
            self._task,
            description=str(run["phase"]).replace("_", " "),
            completed=done,
            total=planned or None,
            share=f"{done}/{planned} rollouts",
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
        self._words.print(_indented(words))

    def left(self, run_id: str) -> None:
        """Says what goes on after a person stopped watching."""
        self.step("You stopped watching; the run goes on in the service.")
        self.note("Run the same command again to watch it on, or:")
        self.note(f"{COMMAND} evolve status {run_id}")
        self.note(f"{COMMAND} evolve cancel {run_id}")
        self.note(f"{COMMAND} down (stops the service; the run goes on at the next start)")

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
            TextColumn("{task.fields[share]}"),
            TextColumn("{task.fields[spend]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._words) as progress:
            yield Bars(progress)

    def quote(self, quote: dict[str, Any]) -> None:
        """Says before the run what it will take and what it can detect."""
        expected, limit = quote["expected"], quote["limit"]
        self.note(
            f"expected: {expected['rollouts']} rollouts, {expected['tokens']:,} tokens, "
            f"${expected['cost_usd']:.4f}, {expected['wall_s']:.0f} s "
            f"({quote['seconds_per_rollout']:.2f} s a rollout)"
        )
        self.note(
            f"at most: {limit['rollouts']} rollouts, {limit['tokens']:,} tokens, "
            f"${limit['cost_usd']:.4f}, {limit['wall_s']:.0f} s"
        )
        effect = quote.get("smallest_detectable_effect")
        found = f"+{effect:.2f}" if effect is not None else "nothing: too few pairs"
        self.note(
            f"sealed test: {quote['sealed_pairs']} pairs at most, evidence needed "
            f"{1 / quote['alpha_t']:.0f} : 1; smallest gain found 4 times in 5: {found}"
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
            self._out.print()
            self._out.print(_calls(report["calls"]))
        self._out.print(
            f"\nThe service runs on at {report['address']} "
            f"(production is version {report['production_version']}). Look next:\n"
            f"  {COMMAND} evolve status {report['id']}\n"
            f"  {COMMAND} artifact list\n"
            f"  {report['address']}/openapi.json (every route)\n"
            f"  {COMMAND} down (stops it)",
            markup=False,
        )

    def _learned(self, learned: dict[str, Any]) -> None:
        for name, content in learned.items():
            pool = content.get("pool") or []
            if pool:
                chosen = _SHOWN.get(content["retrieval"], content["retrieval"])
                self._out.print(
                    f"\n{name}: {len(pool)} solved cases, of which {content['k']} are shown to the "
                    f"model ({chosen}):",
                    markup=False,
                )
            for case in pool[:_CASES]:
                calls = " ".join(
                    f"{call['name']}({', '.join(map(str, call['arguments'].values()))})"
                    for call in case["actions"]
                )
                self._out.print(_indented(f"{case['input']} → {calls or case['answer']}"))
            if len(pool) > _CASES:
                self._out.print(_indented(f"… and {len(pool) - _CASES} more"))
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


def _indented(words: str) -> Padding:
    """A line below a step's heading; what does not fit goes on below it, indented too."""
    return Padding(Text(words), (0, 0, 0, 2), expand=False)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
