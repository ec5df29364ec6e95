"""Asking: a model's reply, parsed; when it cannot be, the model is shown why and asked again."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from instar_core.base import content_hash, short
from instar_core.errors import InfrastructureError, ParseFailure
from instar_core.lab import Backend, EffectStart, Parser, Role
from instar_core.messages import Message, Messages
from instar_core.usage import Amount, Usage
from instar_evolvers.lab.config import LabConfig
from instar_evolvers.lab.effects import EffectDoor, Perform, Recorder, Tried
from instar_evolvers.lab.scope import Meter

__all__ = ["Asking"]

T = TypeVar("T")


class Asking:
    """Asks models for a Lab; every raw reply is recorded.

    Args:
        door: The Lab's effects.
        backend: Performs them.
        slots: Bounds how much runs at once, over all strands of the evolver.
        config: Retries.
    """

    def __init__(
        self, door: EffectDoor, backend: Backend, slots: asyncio.Semaphore, config: LabConfig
    ) -> None:
        self._door = door
        self._backend = backend
        self._slots = slots
        self._config = config

    async def run(
        self, key: str, role: Role, messages: Messages, parse: Parser[T], used: Meter
    ) -> T:
        """The parsed reply to ``messages``.

        After an error the model sees its reply and what was wrong with it; when that does not help
        either, a last request asks only to mend the reply's form.

        Args:
            key: Effect key; attempts are recorded below it.
            role: Which model is asked.
            messages: The request.
            parse: Turns a reply into a value; its ``ValueError`` is shown to the model.
            used: Where the consumption is added.

        Raises:
            ParseFailure: If no attempt could be parsed; quotes the last reply.
        """
        retries = self._config.parse_retries
        shown, reply, problem = tuple(messages), "", ""
        for attempt in range(retries + 2):
            if 0 < attempt <= retries:
                shown = (*shown, *_show_error(reply, problem))
            elif attempt:
                shown = _repair(reply, problem)
            reply = await self._reply(f"{key}/{attempt}", role, shown, used)
            try:
                return parse(reply)
            except ValueError as error:
                problem = str(error) or type(error).__name__
        raise ParseFailure(
            f"The {role}'s reply could not be used in {retries + 2} attempts ({short(problem)}). "
            f"Its last reply was: {short(reply, 400)!r}",
            remedy="A larger model may be needed for this role, or a method that asks less of it.",
        )

    async def _reply(self, key: str, role: Role, messages: Messages, used: Meter) -> str:
        door = self._door
        dumped = [message.model_dump(mode="json") for message in messages]
        content = content_hash([role, dumped])
        record = door.recorded(key, "ask", content)
        if record is not None:
            result: Any = record.result
        else:

            async def perform(calls: Recorder) -> Tried:
                text = await self._backend.ask(role, messages, calls)
                usage = calls.usage.model_dump(mode="json")
                return Tried({"reply": text, "usage": usage}, calls.usage)

            start = EffectStart.model_construct(
                key=key,
                kind="ask",
                content=content,
                reserve=Amount(),
                request={"role": role, "messages": dumped},
            )
            result = (await self._perform(start, perform)).result
        used.add(Usage.model_validate(result["usage"]))
        return str(result["reply"])

    async def _perform(self, start: EffectStart, perform: Perform) -> Tried:
        async with self._slots:
            self._door.check()
            try:
                return await self._door.attempts(
                    start,
                    perform,
                    retries=self._config.infrastructure_retries,
                    wait_s=self._config.retry_wait_s,
                )
            except InfrastructureError as error:
                # Not recorded: when the run resumes it is asked again. So nothing may happen in
                # between that a replay would not see.
                self._door.fail(error)
                raise


def _show_error(reply: str, problem: str) -> Messages:
    return (
        Message(role="assistant", content=reply),
        Message(
            role="user",
            content=f"That reply could not be used: {problem}\n"
            "Answer the same request again, in exactly the form that was asked for.",
        ),
    )


def _repair(reply: str, problem: str) -> Messages:
    return (
        Message(
            role="system",
            content="You mend replies that a program could not read. Keep their meaning, correct "
            "their form, and answer with the mended reply alone.",
        ),
        Message(
            role="user",
            content=f"The reply:\n{short(reply, 8000)}\n\nWhat is wrong with it: {problem}",
        ),
    )
