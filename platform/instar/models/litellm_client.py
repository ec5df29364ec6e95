"""litellm client: any provider, with our own retries, disjoint usage, a price, and errors that say
whose fault it was."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from instar.ledger.prices import price_of, priced
from instar.models.base import ModelReply, ModelRequest
from instar.models.bounds import prompt_bound
from instar.models.endpoints import Endpoint, require_key
from instar.models.retries import Sleep, Transient, with_retries
from instar.models.usage import normalise_usage
from instar.redaction import redact_text
from instar.settings import Settings, prepare_process
from instar_core.errors import ContextOverflow, UserError
from instar_core.messages import Message, ToolCall
from instar_core.usage import Amount, Usage

__all__ = ["INVALID_ARGUMENTS", "LitellmClient", "to_openai", "tool_calls_from"]

INVALID_ARGUMENTS = "invalid_json"
"""Key under which arguments that were no JSON object arrive: the tool's schema then refuses them,
and the model sees why."""

_REFUSED_FOR_CONTENT = "content_filter"


class LitellmClient:
    """A provider's model through litellm.

    Args:
        endpoint: A resolved endpoint of kind ``litellm``.
        settings: Time-outs, retries and prices.
        sleep: Waits between attempts.
    """

    def __init__(
        self, endpoint: Endpoint, settings: Settings, *, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._sleep = sleep
        self._price = price_of(endpoint.name, settings)

    async def complete(self, request: ModelRequest) -> ModelReply:
        """One reply.

        Raises:
            ContextOverflow: If the messages do not fit.
            UserError: If a key is missing, or the provider refuses the request itself.
            ModelError: If it stays away, limits or fails after all attempts.
        """
        require_key(self._endpoint)
        models = self._settings.models
        # The first import takes seconds, which would stop heartbeats on this loop.
        await asyncio.to_thread(_litellm)
        begun = time.monotonic()
        response = await with_retries(
            f"model {self._endpoint.name}",
            lambda: self._attempt(request),
            max_attempts=models.max_attempts,
            max_wait_s=models.max_wait_s,
            sleep=self._sleep,
        )
        wall_s = time.monotonic() - begun
        if response is None:
            return self._filtered(request, wall_s)
        return self._reply(response, wall_s)

    def reserve_for(self, request: ModelRequest) -> Amount:
        """A conservative count of the prompt plus the longest reply, at the dearest prices."""
        prompt, reply = prompt_bound(request), request.sampling.max_tokens
        return Amount(tokens=prompt + reply, cost_usd=self._price.bound(prompt, reply))

    async def _attempt(self, request: ModelRequest) -> Any:
        litellm = _litellm()
        known = litellm.exceptions
        refused = (known.BadRequestError, known.NotFoundError, known.UnprocessableEntityError)
        try:
            return await litellm.acompletion(**self._arguments(request))
        except known.ContextWindowExceededError as error:
            raise ContextOverflow(_said(error)) from None
        except known.ContentPolicyViolationError:
            return None
        except (known.AuthenticationError, known.PermissionDeniedError) as error:
            provider = self._endpoint.provider
            raise UserError(
                f"{provider} refused the credentials for {self._endpoint.name!r}: {_said(error)}",
                remedy=f"Set the key of {provider} ({provider.upper()}_API_KEY) and try again.",
            ) from None
        except known.PaymentRequiredError as error:
            raise UserError(f"{self._endpoint.provider} asks for payment: {_said(error)}") from None
        except refused as error:
            raise UserError(
                f"{self._endpoint.provider} refused the request to {self._endpoint.name!r}: "
                f"{_said(error)}",
                remedy="Check the model's name, its address and the sampling parameters.",
            ) from None
        except litellm.openai.OpenAIError as error:
            raise Transient(_said(error), retry_after_s=_retry_after(error)) from None

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        sampling = request.sampling
        arguments: dict[str, Any] = {
            "model": self._endpoint.name,
            "messages": [to_openai(message) for message in request.messages],
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "timeout": self._settings.models.timeout_s,
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": True,
        }
        if sampling.top_p < 1.0:
            arguments["top_p"] = sampling.top_p
        if sampling.stop:
            arguments["stop"] = list(sampling.stop)
        if request.seed is not None:
            arguments["seed"] = request.seed
        if request.tools:
            arguments["tools"] = [
                {"type": "function", "function": tool.model_dump(mode="json")}
                for tool in request.tools
            ]
        if self._endpoint.api_base is not None:
            arguments["api_base"] = self._endpoint.api_base
            if self._endpoint.provider == "openai":
                # A server of one's own seldom has a key, and the OpenAI client insists on one.
                arguments["api_key"] = _environment_key(self._endpoint.provider)
        return arguments

    def _reply(self, response: Any, wall_s: float) -> ModelReply:
        choice = response.choices[0]
        said = choice.message
        usage = normalise_usage(response.usage.model_dump() if response.usage else {})
        usage = priced(usage, self._price).model_copy(update={"wall_s": wall_s})
        return ModelReply(
            message=Message(
                role="assistant",
                content=said.content or "",
                tool_calls=tool_calls_from(said.tool_calls or ()),
            ),
            finish_reason=choice.finish_reason or "stop",
            usage=usage,
            fingerprint=self._fingerprint(response),
        )

    def _filtered(self, request: ModelRequest, wall_s: float) -> ModelReply:
        """What the provider would not answer: an empty reply, charged as if it read the prompt."""
        usage = priced(Usage(input_tokens=prompt_bound(request), model_calls=1), self._price)
        return ModelReply(
            message=Message(role="assistant"),
            finish_reason=_REFUSED_FOR_CONTENT,
            usage=usage.model_copy(update={"cost_known": False, "wall_s": wall_s}),
            fingerprint=f"{self._endpoint.name} at {self._endpoint.shown or 'provider'}",
        )

    def _fingerprint(self, response: Any) -> str:
        """The model and address that really answered, as far as the provider says."""
        hidden = getattr(response, "_hidden_params", None) or {}
        where = redact_text(str(hidden.get("api_base") or self._endpoint.shown or "provider"))
        build = getattr(response, "system_fingerprint", None)
        model = f"{self._endpoint.provider}/{response.model or self._endpoint.model}"
        return f"{model} {build} at {where}" if build else f"{model} at {where}"


def to_openai(message: Message) -> dict[str, Any]:
    """A message in OpenAI's shape, tool calls included."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["content"] = message.content or None
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    return turn


def tool_calls_from(calls: Sequence[Any]) -> tuple[ToolCall, ...]:
    """Tool calls from OpenAI's shape; arguments that are no JSON object arrive under one key."""
    return tuple(
        ToolCall(
            id=call.id or "",
            name=call.function.name or "",
            arguments=_arguments_from(call.function.arguments or "{}"),
        )
        for call in calls
    )


def _arguments_from(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return {INVALID_ARGUMENTS: text}
    return parsed if isinstance(parsed, dict) else {INVALID_ARGUMENTS: text}


def _said(error: Exception) -> str:
    text = redact_text(str(getattr(error, "message", "") or error))
    return text.removeprefix("litellm.")[:500]


def _retry_after(error: Exception) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, if the error carries one."""
    response = getattr(error, "response", None)
    sources = [
        getattr(error, "headers", None),
        getattr(error, "litellm_response_headers", None),
        getattr(response, "headers", None),
    ]
    for headers in sources:
        if isinstance(headers, Mapping):
            value = headers.get("retry-after") or headers.get("Retry-After")
            try:
                return max(0.0, float(value)) if value is not None else None
            except ValueError:
                return None
    return None


def _environment_key(provider: str) -> str:
    import os

    return os.environ.get(f"{provider.upper()}_API_KEY") or "none"


def _litellm() -> Any:
    """litellm, imported late and told to stay quiet."""
    prepare_process()
    import litellm

    litellm.suppress_debug_info = True
    return litellm
