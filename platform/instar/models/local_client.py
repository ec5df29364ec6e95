"""Local client: speaks to the engine over HTTP and keeps the tokens of every reply."""

from __future__ import annotations

import asyncio
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx

from instar.engine.weights import model_dir
from instar.models.base import ModelReply, ModelRequest
from instar.models.bounds import prompt_bound
from instar.models.endpoints import Endpoint
from instar.models.retries import Transient, with_retries
from instar.models.usage import normalise_usage
from instar.settings import Settings
from instar_core.errors import ContextOverflow, ModelError, PrerequisiteError, UserError
from instar_core.messages import Message
from instar_core.rollouts import TokenCapture
from instar_core.usage import Amount

__all__ = ["EngineConnection", "LocalClient"]

_ATTEMPTS = 40
_LOADING_WAIT_S = 2.0
_TEMPLATE_TOKENS = 8
_DEFAULT_SYSTEM_TOKENS = 32


class EngineConnection:
    """HTTP to the engine, one connection pool per event loop.

    Args:
        base: The engine's address.
        settings: Time-outs.
    """

    def __init__(self, base: str, settings: Settings) -> None:
        self._base = base
        self._settings = settings
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The engine's answer; waits while the engine starts or restarts.

        Raises:
            ContextOverflow: If the prompt does not fit.
            UserError: If the engine refuses the request itself.
            PrerequisiteError: If the model is not installed.
            ModelError: If the engine stays away or fails.
        """

        async def attempt() -> dict[str, Any]:
            try:
                response = await self._http().post(path, json=body)
            except httpx.ReadTimeout as error:
                raise ModelError(
                    f"the local engine at {self._base} did not answer in "
                    f"{self._settings.models.timeout_s:g} s.",
                    remedy="Raise INSTAR_MODELS__TIMEOUT_S or lower the concurrency.",
                ) from error
            except httpx.HTTPError as error:
                raise Transient(f"{self._base}: {type(error).__name__}: {error}") from error
            if response.status_code == 200:
                answer: dict[str, Any] = response.json()
                return answer
            raise _refusal(response)

        return await with_retries(
            f"local engine at {self._base}",
            attempt,
            max_attempts=_ATTEMPTS,
            max_wait_s=min(_LOADING_WAIT_S, self._settings.models.max_wait_s),
        )

    async def aclose(self) -> None:
        """Closes the connections of the present event loop."""
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.aclose()
        self._client = None

    def _http(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = httpx.AsyncClient(
                base_url=self._base,
                timeout=httpx.Timeout(self._settings.models.timeout_s, connect=5.0),
                limits=httpx.Limits(max_connections=256, max_keepalive_connections=64),
                trust_env=False,
            )
            self._loop = loop
        return self._client


class LocalClient:
    """The packaged open model, through the engine.

    Args:
        endpoint: A resolved endpoint of kind ``local``.
        settings: The service's settings.
    """

    def __init__(self, endpoint: Endpoint, settings: Settings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._connection = EngineConnection(endpoint.api_base or "", settings)

    async def complete(self, request: ModelRequest) -> ModelReply:
        """One reply with its token ids and log-probs. Raises as ``EngineConnection.post``."""
        if request.tools:
            raise UserError(
                f"model {self._endpoint.name!r} has no native tool calls.",
                remedy="Set the agent's tool_protocol to 'text'.",
            )
        begun = time.monotonic()
        answer = await self._connection.post("/v1/chat/completions", self._body(request))
        wall_s = time.monotonic() - begun
        choice = answer["choices"][0]
        usage = normalise_usage(answer["usage"]).model_copy(update={"wall_s": wall_s})
        tokens = choice.get("instar")
        capture = None
        if tokens is not None:
            capture = TokenCapture(
                prompt_ids=tuple(tokens["prompt_token_ids"]),
                reply_ids=tuple(tokens["token_ids"]),
                logprobs=tuple(tokens["logprobs"]),
            )
        return ModelReply(
            message=Message(role="assistant", content=choice["message"]["content"]),
            finish_reason=choice["finish_reason"],
            usage=usage,
            capture=capture,
            fingerprint=f"{answer['system_fingerprint']} at {self._endpoint.shown}",
        )

    def reserve_for(self, request: ModelRequest) -> Amount:
        """The prompt as the model's tokenizer counts it, plus the longest reply; costs nothing."""
        path = model_dir(self._settings.data_dir) / "tokenizer.json"
        if not path.is_file():
            prompt = prompt_bound(request)
        else:
            texts = [message.content for message in request.messages]
            encoded = _tokenizer(path).encode_batch_fast(texts, add_special_tokens=False)
            prompt = sum(len(one.ids) + _TEMPLATE_TOKENS for one in encoded)
            prompt += _DEFAULT_SYSTEM_TOKENS
        return Amount(tokens=prompt + request.sampling.max_tokens)

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._connection.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stop": list(sampling.stop),
            "return_tokens": request.capture,
        }
        if request.seed is not None:
            body["seed"] = request.seed
        return body


def _refusal(response: httpx.Response) -> Exception:
    """The engine's error as ours; what may pass is :class:`Transient`."""
    try:
        error = response.json()["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        code, message = "", response.text[:200]
    if code == "context_length_exceeded":
        return ContextOverflow(message)
    if code in ("engine_missing", "embeddings_missing"):
        return PrerequisiteError(message)
    if code == "engine_failed":
        return ModelError(f"the local engine could not load its model: {message}")
    if response.status_code >= 500:
        return Transient(message)
    return UserError(f"the local engine refused the request: {message}")


@lru_cache(maxsize=2)
def _tokenizer(path: Path) -> Any:
    """The model's tokenizer, without torch."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))
