"""Schemas: the bodies of the engine's requests, a subset of OpenAI's, checked before use."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["ChatBody", "ChatMessage", "CompletionBody", "EmbeddingBody", "SamplingBody"]


class ChatMessage(BaseModel):
    """One chat turn. Content is text, or OpenAI's list of text parts."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "user", "assistant", "tool", "developer"]
    content: str = ""

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        if value is None:
            return ""
        if isinstance(value, list):
            return "".join(
                part["text"] for part in value if isinstance(part, dict) and "text" in part
            )
        return value


class SamplingBody(BaseModel):
    """What chat and raw completions have in common."""

    model_config = ConfigDict(extra="ignore")

    model: str
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int = Field(default=1, ge=1, le=64)
    seed: int | None = None
    stop: list[str] = Field(default_factory=list, max_length=16)
    stream: bool = False
    return_tokens: bool = False

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if value is None:
            return []
        return [value] if isinstance(value, str) else value

    @property
    def limit(self) -> int | None:
        """The bound on new tokens under whichever of its two names it came."""
        return self.max_completion_tokens or self.max_tokens


class ChatBody(SamplingBody):
    """``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    logprobs: bool = False
    tools: list[Any] | None = None


class CompletionBody(SamplingBody):
    """``POST /v1/completions``: a raw prompt, as text or as token ids, no chat template."""

    prompt: str | list[int]
    logprobs: int | None = None


class EmbeddingBody(BaseModel):
    """``POST /v1/embeddings``."""

    model_config = ConfigDict(extra="ignore")

    model: str
    input: list[str] = Field(min_length=1, max_length=2048)
    encoding_format: Literal["float", "base64"] = "float"

    @field_validator("input", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value
