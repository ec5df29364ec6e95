"""Scope: where in an evolver's program an effect stands, independent of who finishes first.

The root scope is the evolver's own sequential code; each branch of a ``gather`` or ``completed``
has a scope of its own, named by the item's index. Everything that must be the same on a replay
(ordinals, draw indices, what is left of the budget, the order of events) is counted here and not by
the clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from instar_core.errors import LabMisuse
from instar_core.evolution import Event
from instar_core.usage import Usage

__all__ = ["CURRENT", "Group", "Leavable", "Meter", "Scope"]

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_PARENT = -1
Pair = tuple[str, str]


class Meter:
    """Sums of what was consumed, as plain numbers (a model per addition would be too slow)."""

    __slots__ = ("cost_usd", "rollouts", "tokens")

    def __init__(self) -> None:
        self.rollouts = 0
        self.tokens = 0
        self.cost_usd = 0.0

    def add(self, usage: Usage, rollouts: int = 0) -> None:
        """Adds one effect's usage."""
        self.rollouts += rollouts
        self.tokens += usage.tokens
        self.cost_usd += usage.cost_usd

    def merge(self, other: Meter) -> None:
        """Adds another meter's sums."""
        self.rollouts += other.rollouts
        self.tokens += other.tokens
        self.cost_usd += other.cost_usd


class Leavable(Protocol):
    """Branches that were started and not yet all handed over."""

    async def aclose(self) -> None:
        """Lets them run to their end."""
        ...

    async def abort(self) -> None:
        """Ends them now."""
        ...


class Scope:
    """One sequential strand of an evolver, with its counters.

    Args:
        path: The scope path that begins every effect key in it.
        parent: The strand that opened the gather; ``None`` for the root.
        group: The gather this strand is a branch of.
        index: The item's index in that gather.
    """

    __slots__ = (
        "base",
        "busy",
        "draws",
        "emit",
        "group",
        "index",
        "open_arrivals",
        "open_groups",
        "ordinal",
        "owner",
        "parent",
        "path",
        "used",
    )

    def __init__(
        self,
        path: str,
        owner: object,
        emit: Callable[[Event], None],
        group: Group | None = None,
        index: int = _PARENT,
    ) -> None:
        self.path = path
        self.owner = owner
        self.emit = emit
        self.group = group
        self.index = index
        self.parent = group.parent if group is not None else None
        self.ordinal = 0
        self.busy = ""
        self.draws: dict[Pair, int] = {}
        self.open_groups: list[Group] = []
        self.open_arrivals: list[Leavable] = []
        self.used = Meter()
        self.base = Meter()
        if self.parent is not None:
            # a snapshot: under `completed` the parent goes on while this branch runs
            self.base.merge(self.parent.base)
            self.base.merge(self.parent.used)

    @contextmanager
    def hold(self, what: str) -> Iterator[str]:
        """Takes the next ordinal for one operation and gives its effect key.

        Raises:
            LabMisuse: If another operation of this strand is still running; their order, and so
                their keys, would depend on timing.
        """
        if self.busy:
            raise LabMisuse(
                f"{what!r} was started while {self.busy!r} is still running in scope "
                f"{self.path!r}.",
                remedy="Run things at the same time only through lab.gather or lab.completed.",
            )
        self.busy = what
        key = f"{self.path}#{self.ordinal}"
        self.ordinal += 1
        try:
            yield key
        finally:
            self.busy = ""

    def draw(self, pair: Pair) -> int:
        """The next draw index of a (candidate digest, task digest): 0, 1, 2 …, none twice in a run.

        Raises:
            LabMisuse: If another branch of the same gather draws the same pair.
        """
        count: int | None = None
        scope: Scope | None = self
        via: Group | None = None
        while scope is not None:
            if count is None:
                count = scope.draws.get(pair)
            for group in scope.open_groups:
                if group is not via:
                    group.claim(pair, _PARENT)
            via = scope.group
            if via is not None:
                via.claim(pair, scope.index)
            scope = scope.parent
        index = count or 0
        self.draws[pair] = index + 1
        return index


class Group:
    """The branches of one ``gather`` or ``completed`` call.

    Args:
        parent: The scope that opened it.
        path: ``<parent path>/<ordinal>:<name>``.
        size: Number of branches.
        live: Whether events of branch i may pass while i is the first unfinished branch
            (``gather``); otherwise they wait until the branch is handed over (``completed``).
    """

    __slots__ = ("claims", "ended", "front", "held", "live", "parent", "path", "scopes")

    def __init__(self, parent: Scope, path: str, size: int, *, live: bool) -> None:
        self.parent = parent
        self.path = path
        self.live = live
        self.claims: dict[Pair, int] = {}
        self.held: list[list[Event]] = [[] for _ in range(size)]
        self.ended = [False] * size
        self.front = 0
        self.scopes = [
            Scope(f"{path}[{index}]", parent.owner, self._emitter(index), self, index)
            for index in range(size)
        ]

    @staticmethod
    def path_for(key: str, name: str) -> str:
        """The path of a group opened under an effect key.

        Raises:
            LabMisuse: If the name could not be told apart inside a key.
        """
        if not _NAME.fullmatch(name):
            raise LabMisuse(
                f"A gather cannot be named {name!r}.",
                remedy="Use letters, digits, '_', '.' and '-' only.",
            )
        scope, _, ordinal = key.rpartition("#")
        return f"{scope}/{ordinal}:{name}"

    def claim(self, pair: Pair, index: int) -> None:
        """Notes that a branch draws a pair; refuses a second branch."""
        holder = self.claims.setdefault(pair, index)
        if holder != index:
            who = "the code around it" if _PARENT in (holder, index) else "another branch"
            raise LabMisuse(
                f"A branch of {self.path!r} and {who} both roll out candidate {pair[0][:12]} on "
                f"the task with digest {pair[1][:12]}; which of them gets which draw would depend "
                "on timing.",
                remedy="Roll out equal candidates once (drop duplicates by digest before the "
                "gather), or split the tasks between the branches.",
            )

    def end(self, index: int) -> None:
        """A branch of a ``gather`` has finished: events behind it may pass, in the items' order."""
        self.ended[index] = True
        while self.front < len(self.ended) and self.ended[self.front]:
            self._release(self.front)
            self.front += 1
        if self.front < len(self.ended):
            self._release(self.front)

    def merge(self, index: int) -> None:
        """Hands a finished branch's counters (and held events) over to the parent."""
        scope = self.scopes[index]
        self._release(index)
        self.parent.draws.update(scope.draws)
        self.parent.used.merge(scope.used)
        if self.parent.open_groups:
            for pair in scope.draws:
                self.claims[pair] = _PARENT

    def _emitter(self, index: int) -> Callable[[Event], None]:
        def emit(event: Event) -> None:
            if self.live and index == self.front:
                self.parent.emit(event)
            else:
                self.held[index].append(event)

        return emit

    def _release(self, index: int) -> None:
        for event in self.held[index]:
            self.parent.emit(event)
        self.held[index].clear()


CURRENT: ContextVar[Scope | None] = ContextVar("instar_lab_scope", default=None)
