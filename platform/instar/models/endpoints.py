"""Endpoints: the one place that turns a model's name into where it is and who speaks to it.

Names: ``local/smollm2-135m-instruct`` (the engine), ``scripted/<name>`` (a reply script), and
``<provider>/<model>`` for everything that litellm speaks to. A base address comes from
``models.api_base`` by full name, then by provider, then from the provider's usual variable.
"""

from __future__ import annotations

import os
import re
from typing import Literal

from instar.engine.weights import CHAT_MODEL, EMBEDDING_MODEL
from instar.ledger.prices import known_providers
from instar.redaction import redact_text
from instar.settings import Settings
from instar_core.base import Frozen
from instar_core.errors import PrerequisiteError, UserError

__all__ = ["Endpoint", "require_key", "resolve_endpoint"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
# Providers that litellm speaks to and its price list does not mention, mostly servers of one's own.
_UNPRICED = frozenset(
    {
        "hosted_vllm",
        "ollama",
        "ollama_chat",
        "lm_studio",
        "openai_like",
        "custom_openai",
        "llamafile",
    }
)

_KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "azure": "AZURE_API_KEY",
    "cohere": "COHERE_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "groq": "GROQ_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "together_ai": "TOGETHERAI_API_KEY",
    "xai": "XAI_API_KEY",
}


class Endpoint(Frozen):
    """Where a model is: the kind of client, provider, model name there, and the base address."""

    name: str
    kind: Literal["local", "scripted", "litellm"]
    provider: str
    model: str
    api_base: str | None = None

    @property
    def shown(self) -> str:
        """The address for people and records, without credentials; empty for the provider's own."""
        return redact_text(self.api_base or "")


def resolve_endpoint(name: str, settings: Settings) -> Endpoint:
    """Where the model of that name is.

    Args:
        name: As a harness names it, ``provider/model``.
        settings: Addresses of the engine and of providers.

    Returns:
        The endpoint; nothing is contacted.

    Raises:
        UserError: If no such model or provider exists; says what is allowed.
    """
    provider, slash, model = name.partition("/")
    if not slash or not model or not _NAME.fullmatch(name):
        raise _unknown(name)
    if "//" in name:
        # Some providers' clients take an address for a model, and would send it the key.
        raise UserError(
            f"{name!r} holds an address where a model's name belongs.",
            remedy="Name the model, and give the address in INSTAR_MODELS__API_BASE.",
        )
    if provider == "local":
        if model not in (CHAT_MODEL, EMBEDDING_MODEL):
            raise UserError(
                f"unknown local model {name!r}; the engine serves 'local/{CHAT_MODEL}'.",
                remedy=f"Set the agent's model to 'local/{CHAT_MODEL}'.",
            )
        base = f"http://{settings.engine.host}:{settings.engine.port}"
        return Endpoint(name=name, kind="local", provider=provider, model=model, api_base=base)
    if provider == "scripted":
        return Endpoint(name=name, kind="scripted", provider=provider, model=model)
    if provider not in known_providers() | _UNPRICED and not _litellm_knows(provider):
        raise _unknown(name)
    base_url = _configured_base(name, provider, settings)
    return Endpoint(name=name, kind="litellm", provider=provider, model=model, api_base=base_url)


def require_key(endpoint: Endpoint) -> None:
    """Checks that the provider's key is set, where one is certainly needed.

    Raises:
        PrerequisiteError: If it is not; a server of one's own (``api_base``) may need none.
    """
    variable = _KEYS.get(endpoint.provider)
    if variable and endpoint.api_base is None and not os.environ.get(variable):
        raise PrerequisiteError(
            f"model {endpoint.name!r} needs a key.", remedy=f"Set {variable} where Instar runs."
        )


def _configured_base(name: str, provider: str, settings: Settings) -> str | None:
    configured = settings.models.api_base
    variables = (f"{provider.upper()}_API_BASE", f"{provider.upper()}_BASE_URL")
    found = configured.get(name) or configured.get(provider)
    for variable in variables:
        found = found or os.environ.get(variable)
    return found or None


def _litellm_knows(provider: str) -> bool:
    import litellm

    return provider in {str(getattr(known, "value", known)) for known in litellm.provider_list}


def _unknown(name: str) -> UserError:
    return UserError(
        f"unknown model {name!r}; a model is 'local/{CHAT_MODEL}', 'scripted/<name>', or "
        "'<provider>/<model>' with a provider that litellm speaks to (openai, anthropic, gemini, "
        "mistral, bedrock, azure, hosted_vllm, ollama, …).",
        remedy="For a server of your own that speaks OpenAI's protocol use 'openai/<model>' and "
        'set INSTAR_MODELS__API_BASE=\'{"openai/<model>": "http://host:port/v1"}\'.',
    )
