"""Schemas of access: what sign-in, people, keys and projects look like on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from instar.store.projects import KeyRole

__all__ = [
    "ApiKeyIn",
    "ApiKeyMade",
    "ApiKeyOut",
    "LoginIn",
    "NewPasswordIn",
    "PasswordIn",
    "ProjectEntry",
    "ProjectMade",
    "ProjectNameIn",
    "RoleIn",
    "SessionOut",
    "SwitchIn",
    "UserIn",
    "UserOut",
]

Email = Annotated[str, Field(min_length=3, max_length=320)]
Password = Annotated[SecretStr, Field(min_length=1, max_length=1000)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LoginIn(_In):
    """An address and its password."""

    email: Email
    password: Password
    project: str | None = Field(
        default=None, max_length=63, description="name of the project to work in first"
    )


class SwitchIn(_In):
    """The project to work in from now on."""

    project: Name = Field(description="its name or id")


class PasswordIn(_In):
    """A new password for oneself."""

    current: Password
    new: Password


class NewPasswordIn(_In):
    """A new password for somebody else; every session of that person ends."""

    password: Password


class ProjectEntry(BaseModel):
    """A project, and what the caller may do in it."""

    id: str
    name: str
    role: str


class SessionOut(BaseModel):
    """Who calls, and where."""

    kind: Literal["session", "key"]
    id: str = Field(description="the user's id, or the key's")
    name: str = ""
    email: str = ""
    agent: str = Field(default="", description="the agent that holds the key")
    scopes: list[str] = Field(default_factory=list, description="areas of the key; all when empty")
    instance: bool = Field(description="may create projects and users")
    project: ProjectEntry | None = Field(description="where the call works; null: no role there")
    projects: list[ProjectEntry] = Field(description="where the caller may work")
    csrf_token: str | None = Field(
        default=None, description="repeat it in X-CSRF-Token with every change"
    )
    expires_at: datetime | None = None


class UserIn(_In):
    """A person to add to the project; one who exists elsewhere is given the role here."""

    email: Email
    name: str = Field(default="", max_length=200)
    role: KeyRole = "viewer"
    password: Password | None = Field(
        default=None, description="left out where people sign in at an identity provider"
    )
    instance: bool = Field(default=False, description="may create projects and users")


class RoleIn(_In):
    """What a person may do in the project."""

    role: KeyRole


class UserOut(BaseModel):
    """A person with a role in the project."""

    id: str
    email: str
    name: str
    role: str
    instance: bool
    disabled: bool


class ApiKeyIn(_In):
    """A key to make."""

    name: Name
    role: KeyRole = "operator"
    scopes: list[str] = Field(
        default_factory=list,
        max_length=50,
        description="areas (first part of the path under /v1), each with ':read' where reading is "
        "enough; all when empty",
    )
    expires_at: datetime | None = Field(default=None, description="with time zone; never when null")
    agent: str = Field(
        default="", max_length=255, description="the agent that will hold it; it never approves"
    )
    instance: bool = Field(default=False, description="may create projects and users")


class ApiKeyOut(BaseModel):
    """A key, without its secret."""

    id: str
    name: str
    prefix: str = Field(description="how it begins, so that people recognise it")
    role: str
    scopes: list[str]
    instance: bool
    agent: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="to the minute")


class ApiKeyMade(BaseModel):
    """A new key. Its secret is shown this once; a repeated request gets null."""

    id: str
    key: str | None


class ProjectNameIn(_In):
    """A project to make."""

    name: str = Field(min_length=1, max_length=63)


class ProjectMade(BaseModel):
    """A new project; made with a key, it comes with its first key, shown this once."""

    id: str
    name: str
    key_id: str | None = None
    key: str | None = None
