"""Schemas of secrets: what comes in with a value and goes out without one."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from instar.api.schemas import ServerOut
from instar.store.secrets import MAX_VALUE

__all__ = ["MovedSecretOut", "SecretIn", "SecretOut", "ServerSaved"]


class SecretIn(BaseModel):
    """A value to keep; nothing gives it back."""

    model_config = ConfigDict(extra="forbid")

    value: SecretStr = Field(min_length=1, max_length=MAX_VALUE, description="the value itself")
    use: Literal["production", "rollouts"] = Field(
        default="production",
        description="'production': never used in rollouts; 'rollouts': for test bindings",
    )


class SecretOut(BaseModel):
    """A secret without its value; refer to it as ``${secret:<id>}``."""

    id: str
    name: str
    use: Literal["production", "rollouts"]
    revision: int = Field(description="how often it was set; also its ETag")
    key_id: str = Field(description="fingerprint of the key that it is encrypted with")
    created_by: str
    created_at: datetime
    updated_at: datetime


class MovedSecretOut(BaseModel):
    """A value that was taken out of a registration, and the secret that keeps it now."""

    place: str = Field(description="where it was: 'env API_KEY', 'args[2]'")
    name: str
    id: str


class ServerSaved(ServerOut):
    """A registered tool server, and what was moved out of its registration."""

    moved: list[MovedSecretOut] = Field(
        default_factory=list, description="values that are kept as secrets now"
    )
    notices: list[str] = Field(default_factory=list)
