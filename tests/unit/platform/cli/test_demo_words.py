"""What the demo prints: nothing twice, no 'None', and lines that wrap below their heading."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from instar.cli.demo.show import COMMAND, Show

_RUN: dict[str, Any] = {
    "phase": "waiting",
    "rollouts_done": 0,
    "rollouts_planned": 0,
    "tokens": 0,
    "cost_usd": 0.0,
}


def _event(kind: str, message: str) -> dict[str, Any]:
    return {"kind": kind, "message": message}


def test_the_bar_never_says_none(capsys: pytest.CaptureFixture[str]) -> None:
    with Show(as_json=False).bars() as bars:
        bars.update(_RUN)
    assert "None" not in capsys.readouterr().err


def test_how_the_run_ended_is_left_to_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    with Show(as_json=False).bars() as bars:
        bars.event(_event("phase", "Measuring."))
        bars.event(_event("ended", "Better than before."))
    words = capsys.readouterr().err
    assert "Measuring." in words
    assert "Better" not in words


def test_a_long_line_goes_on_below_itself(capsys: pytest.CaptureFixture[str]) -> None:
    Show(as_json=False).note("word [bold] " * 30)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1
    assert all(line.startswith("  word") or line.startswith("  [bold]") for line in lines)


def test_who_stops_watching_is_told_that_the_run_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Show(as_json=False).left("0123")
    words = capsys.readouterr().err
    assert "the run goes on" in words
    assert f"{COMMAND} evolve cancel 0123" in words


def test_the_command_is_one_that_can_be_typed_here() -> None:
    assert COMMAND in ("instar", sys.argv[0])
