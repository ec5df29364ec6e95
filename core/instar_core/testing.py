"""Testing: what tests need to be exact. Clocks that stand still, ids that repeat, models that
recite.

A :class:`ReplyScript` answers requests from a list of rules and fails the test on a prompt that no
rule foresaw, so that a changed prompt is noticed instead of being answered by accident.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from instar_core.base import canonical_json, content_hash, short
from instar_core.messages import Message, Messages

__all__ = ["IdMaker", "ManualClock", "ReplyScript", "UnseenPrompt"]

Reply = str | Message | Callable[[Messages], "str | Message"]
Matcher = str | Callable[[Messages], bool]


class UnseenPrompt(AssertionError):
    """A scripted model was asked something that its script does not have."""


class ManualClock:
    """A clock that moves only when told to.

    Args:
        start: Where it stands at first; 1 January 2026 in UTC by default.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        if start.tzinfo is None:
            raise ValueError(f"start {start!r} has no time zone; give an aware datetime")
        self._now = start
        self._origin = start

    def now(self) -> datetime:
        """The time it shows (aware, as given)."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since it was made."""
        return (self._now - self._origin).total_seconds()

    def advance(self, seconds: float) -> datetime:
        """Moves it forward and returns the new time.

        Raises:
            ValueError: If ``seconds`` is negative: this clock never runs back.
        """
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds!r} s; time never runs back")
        self._now += timedelta(seconds=seconds)
        return self._now


class IdMaker:
    """Makes the same UUIDv7-shaped ids in the same order, sorted by creation, for one seed.

    Args:
        seed: Another seed gives other ids.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._made = 0

    def __call__(self) -> str:
        """The next id."""
        self._made += 1
        noise = content_hash([self._seed, self._made])
        # Layout of RFC 9562: 48 bits of time, version 7, 12 bits, variant 10, 62 bits.
        time = f"{0x019B_0000_0000 + self._made:012x}"
        text = time + "7" + noise[:3] + f"{8 + int(noise[3], 16) % 4:x}" + noise[4:19]
        return str(uuid.UUID(text))


class ReplyScript:
    """A model's replies by rule. The first rule that matches answers.

    Args:
        rules: Pairs of matcher and reply. A matcher is a text that must occur in the last message,
            or a function of the messages. A reply is a text, a message, a function of the messages,
            or a list of these to be given one after the other (its last one for ever).
        by_hash: Replies by the sha256 of the canonical messages, looked up before the rules.

    Attributes:
        seen: Every request so far, in order.
    """

    def __init__(
        self,
        rules: Sequence[tuple[Matcher, Reply | list[Reply]]] = (),
        *,
        by_hash: dict[str, Reply] | None = None,
    ) -> None:
        self._rules = list(rules)
        self._by_hash = dict(by_hash or {})
        self._used = [0] * len(self._rules)
        self.seen: list[Messages] = []

    @staticmethod
    def hash_of(messages: Messages) -> str:
        """The key of a request in ``by_hash``."""
        return content_hash([message.model_dump(mode="json") for message in messages])

    def reply(self, messages: Messages) -> Message:
        """The scripted assistant message.

        Raises:
            UnseenPrompt: If no rule matches; shows the last message and the request's hash.
        """
        self.seen.append(messages)
        key = self.hash_of(messages)
        if key in self._by_hash:
            return _message(self._by_hash[key], messages)
        for i, (matcher, reply) in enumerate(self._rules):
            if not _matches(matcher, messages):
                continue
            if isinstance(reply, list):
                reply = reply[min(self._used[i], len(reply) - 1)]
            self._used[i] += 1
            return _message(reply, messages)
        last = messages[-1].content if messages else ""
        raise UnseenPrompt(
            f"no scripted reply for the prompt ending {short(last, 400)!r} (hash {key}, "
            f"{len(canonical_json([m.model_dump(mode='json') for m in messages]))} bytes); "
            "add a rule, or find out why the prompt changed"
        )


def _matches(matcher: Matcher, messages: Messages) -> bool:
    if callable(matcher):
        return matcher(messages)
    return bool(messages) and matcher in messages[-1].content


def _message(reply: Reply, messages: Messages) -> Message:
    value = reply(messages) if callable(reply) else reply
    return value if isinstance(value, Message) else Message(role="assistant", content=value)
