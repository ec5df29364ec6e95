"""Events: an evolution run's gap-free stream as server-sent events, from any number on.

The database is the stream: ids are the events' own numbers, so that a reader who lost its
connection goes on with ``Last-Event-ID`` and misses nothing. Comments keep a quiet stream open; one
``end`` event closes it when the run is over.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from instar.api.problems import Unauthenticated
from instar.evolution.schemas import RunEvent, RunStatus
from instar_core.errors import PermissionDenied

__all__ = [
    "HEARTBEAT_S",
    "POLL_S",
    "STREAM",
    "TERMINAL",
    "UNBUFFERED",
    "first_seq",
    "stream_events",
]

HEARTBEAT_S = 15.0
POLL_S = 0.5
UNBUFFERED: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies from holding a stream back."""
STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
"""What OpenAPI says about a stream."""
TERMINAL: Final = frozenset(
    {"succeeded", "no_improvement", "failed", "cancelled", "budget_exhausted"}
)


def first_seq(after: int, last_event_id: str | None) -> int:
    """The number after which a stream starts; the header of a reconnecting reader wins."""
    if last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) <= 18:
        return int(last_event_id)
    return after


async def stream_events(
    read_events: Callable[[int], Awaitable[list[RunEvent]]],
    read_status: Callable[[], Awaitable[RunStatus]],
    after: int,
) -> AsyncIterator[str]:
    """The events after a number as they come, then ``end``, or nothing more where the reader's
    right to them ended.

    Args:
        read_events: Gives the events after a number, in order.
        read_status: Gives the run's status.
        after: The number of the last event that the reader has.
    """
    written = time.monotonic()
    while True:
        try:
            # The status is read first: events written before the end are then all seen below.
            status = await read_status()
        except (Unauthenticated, PermissionDenied):
            # No `end`, so the reader comes back and is told why it may not.
            return
        events = await read_events(after)
        for event in events:
            after = event.seq
            data = json.dumps(event.model_dump(mode="json"), ensure_ascii=False)
            yield f"id: {event.seq}\nevent: {event.kind}\ndata: {data}\n\n"
            written = time.monotonic()
        if events:
            continue
        if status.state in TERMINAL:
            end = {"state": status.state, "reason": status.reason}
            yield f"event: end\ndata: {json.dumps(end, ensure_ascii=False)}\n\n"
            return
        if time.monotonic() - written >= HEARTBEAT_S:
            yield ": waiting\n\n"
            written = time.monotonic()
        await asyncio.sleep(POLL_S)
