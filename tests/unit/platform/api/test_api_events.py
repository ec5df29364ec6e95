"""The event stream: nothing lost on reconnecting, comments while quiet, one end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import pytest

from instar.api import events
from instar.api.events import first_seq, stream_events
from instar.api.problems import Unauthenticated
from instar.evolution.schemas import EvolutionSpec, RunEvent, RunStatus
from instar_core.errors import InstarError, PermissionDenied
from instar_core.evolution import Quote, RunState
from instar_core.usage import Amount

AT = datetime(2026, 1, 1, tzinfo=UTC)
QUOTE = Quote(
    expected=Amount(), limit=Amount(), seconds_per_rollout=1.0, sealed_pairs=20, alpha_t=0.01
)


class Night:
    """A run whose events and state grow as it is read."""

    def __init__(self, script: list[tuple[int, RunState]]) -> None:
        self.script = script
        self.written: int = script[0][0]
        self.state: RunState = script[0][1]

    async def read_events(self, after: int) -> list[RunEvent]:
        """At most two events after a number; each read moves the night on."""
        found = [
            RunEvent(seq=seq, kind="step", message=f"event {seq} ✓", at=AT)
            for seq in range(after + 1, self.written + 1)
        ][:2]
        return found

    async def read_status(self) -> RunStatus:
        """The status; moves the night on."""
        if self.script:
            self.written, self.state = self.script.pop(0)
        return RunStatus(
            id="r",
            agent="a",
            evolver="e",
            state=self.state,
            spec=EvolutionSpec(agent="a", task_set="t"),
            quote=QUOTE,
            created_at=AT,
        )


def collect(stream: AsyncIterator[str]) -> list[str]:
    async def go() -> list[str]:
        return [part async for part in stream]

    return asyncio.run(go())


def ids(parts: list[str]) -> list[int]:
    return [
        int(part.split("\n")[0].removeprefix("id: ")) for part in parts if part.startswith("id")
    ]


def test_s93_every_event_comes_once_in_order_and_then_one_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.0)
    night = Night([(3, "running"), (3, "running"), (4, "running"), (7, "succeeded")])
    parts = collect(stream_events(night.read_events, night.read_status, 0))
    assert ids(parts) == [1, 2, 3, 4, 5, 6, 7]
    assert parts[-1].startswith("event: end\n")
    assert sum(part.startswith("event: end") for part in parts) == 1
    assert "event 1 ✓" in parts[0]


def test_s93_a_reader_who_comes_back_goes_on_after_its_last_event() -> None:
    night = Night([(5, "no_improvement")])
    assert ids(collect(stream_events(night.read_events, night.read_status, 3))) == [4, 5]
    assert first_seq(0, "3") == 3
    assert first_seq(2, None) == 2
    assert first_seq(2, "nonsense") == 2


def test_s89_a_quiet_stream_is_kept_open_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.0)
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.0)
    night = Night([(0, "running"), (0, "running"), (0, "failed")])
    parts = collect(stream_events(night.read_events, night.read_status, 0))
    assert parts == [": waiting\n\n", ": waiting\n\n", parts[-1]]


def test_a33_a_stream_ends_where_the_right_to_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.0)
    for refusal in (Unauthenticated(), PermissionDenied("no role any more")):
        night = Night([(2, "running")])
        looks = iter([False, True])

        async def read_status(
            night: Night = night,
            looks: Iterator[bool] = looks,
            refusal: InstarError = refusal,
        ) -> RunStatus:
            if next(looks):
                raise refusal
            return await night.read_status()

        parts = collect(stream_events(night.read_events, read_status, 0))
        assert ids(parts) == [1, 2] and len(parts) == 2
