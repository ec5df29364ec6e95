"""Scripted: a model that recites, from a JSON file of rules. For tests, and for trying an agent's
wiring without a model: the same request always gets the same reply."""

from __future__ import annotations

import asyncio
import re
from typing import Literal

from pydantic import Field, ValidationError

from instar.ledger.prices import FREE, Price, price_of, priced
from instar.models.base import ModelReply, ModelRequest
from instar.models.bounds import prompt_bound
from instar.models.endpoints import Endpoint
from instar.settings import Settings
from instar_core.base import Frozen, content_hash, short
from instar_core.errors import ModelError, UserError
from instar_core.messages import Message, Messages, ToolCall
from instar_core.usage import Amount, Usage

__all__ = ["Rule", "Script", "ScriptedClient", "read_script"]


class Rule(Frozen):
    """What to answer when a pattern is found."""

    match: str = Field(default="", description="regular expression, searched; empty matches all")
    where: Literal["last", "system", "any"] = Field(
        default="last", description="the last message, the system messages, or all of them"
    )
    reply: str | tuple[str, ...] = Field(
        default="",
        description=r"text, where \1 or \g<name> stand for groups; of several, one by the hash of "
        "the request and its seed",
    )
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    delay_s: float = Field(default=0.0, ge=0.0)
    fail: str = Field(default="", description="fail as a provider would, with this message")


class Script(Frozen):
    """A scripted model: the first rule that matches answers."""

    rules: tuple[Rule, ...] = Field(min_length=1)


def read_script(name: str, settings: Settings) -> Script:
    """The script ``<models.scripts_dir>/<name>.json``.

    Raises:
        UserError: If scripts are off, the name leads outside the folder, or the file is wrong.
    """
    folder = settings.models.scripts_dir
    if folder is None:
        raise UserError(
            f"model 'scripted/{name}' needs a folder of scripts.",
            remedy="Set INSTAR_MODELS__SCRIPTS_DIR to it.",
        )
    path = folder / (name if name.endswith(".json") else f"{name}.json")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"script {name!r} lies outside {folder}.")
    try:
        return Script.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        there = ", ".join(sorted(p.stem for p in folder.glob("*.json"))) or "none"
        raise UserError(f"no script {name!r} in {folder}; there are: {there}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UserError(f"script {path.name!r} is wrong at {place!r}: {first['msg']}.") from None


class ScriptedClient:
    """A model that recites a script.

    Args:
        endpoint: A resolved endpoint of kind ``scripted``.
        settings: The folder of scripts, and prices if it shall cost something.
    """

    def __init__(self, endpoint: Endpoint, settings: Settings) -> None:
        self._name = endpoint.name
        self._script = read_script(endpoint.model, settings)
        self._digest = content_hash(self._script)[:12]
        self._price: Price = FREE
        if endpoint.name in settings.models.prices:
            self._price = price_of(endpoint.name, settings)

    async def complete(self, request: ModelRequest) -> ModelReply:
        """The reply of the first rule that matches.

        Raises:
            UserError: If none does: a script must foresee what it is asked.
            ModelError: If the rule says so.
        """
        for rule in self._script.rules:
            found = re.search(rule.match, _searched(rule, request.messages), re.DOTALL)
            if found is not None:
                return await self._answer(rule, found, request)
        last = request.messages[-1].content if request.messages else ""
        raise UserError(
            f"model {self._name!r} has no rule for {short(last, 300)!r}.",
            remedy="Add a rule to the script, for instance one with an empty 'match'.",
        )

    def reserve_for(self, request: ModelRequest) -> Amount:
        """A conservative count of the prompt plus the longest reply."""
        prompt, reply = prompt_bound(request), request.sampling.max_tokens
        return Amount(tokens=prompt + reply, cost_usd=self._price.bound(prompt, reply))

    async def _answer(self, rule: Rule, found: re.Match[str], request: ModelRequest) -> ModelReply:
        if rule.delay_s:
            await asyncio.sleep(rule.delay_s)
        if rule.fail:
            raise ModelError(f"model {self._name!r}: {rule.fail}")
        text = rule.reply
        if not isinstance(text, str):
            pick = content_hash([request.model_dump(mode="json", exclude={"capture"})])
            text = text[int(pick[:12], 16) % len(text)] if text else ""
        content = found.expand(text) if "\\" in text else text
        calls = tuple(
            call.model_copy(update={"id": call.id or f"call_{index}"})
            for index, call in enumerate(rule.tool_calls)
        )
        usage = Usage(
            input_tokens=max(1, sum(len(m.content) for m in request.messages) // 4),
            output_tokens=max(1, len(content) // 4 + 8 * len(calls)),
            model_calls=1,
        )
        return ModelReply(
            message=Message(role="assistant", content=content, tool_calls=calls),
            finish_reason="tool_calls" if calls else rule.finish_reason,
            usage=priced(usage, self._price),
            fingerprint=f"{self._name} {self._digest}",
        )


def _searched(rule: Rule, messages: Messages) -> str:
    if rule.where == "last":
        return messages[-1].content if messages else ""
    chosen = [m for m in messages if rule.where == "any" or m.role == "system"]
    return "\n".join(message.content for message in chosen)
