"""Tables of people and secrets: users, their roles and sessions, and what is kept encrypted."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from instar.store.tables_base import (
    SCHEMA,
    Base,
    Bytes,
    CreatedAt,
    Exact,
    Id,
    Key,
    Maybe,
    Moment,
    OwnId,
    ProjectId,
    Words,
)

__all__ = ["LoginFailureRow", "RoleBindingRow", "SecretRow", "SessionRow", "SignInRow", "UserRow"]


class UserRow(Base):
    """A person; visible in projects where he or she has a role, changed by definer functions."""

    __tablename__ = "user"
    __table_args__ = (
        Index("uq_user_email", text("lower(email)"), unique=True),
        Index(
            "uq_user_subject",
            "issuer",
            "subject",
            unique=True,
            postgresql_where=text("subject <> ''"),
        ),
    )
    id: Mapped[OwnId]
    email: Mapped[str]
    name: Mapped[Words]
    password_hash: Mapped[Words]
    issuer: Mapped[Words]
    subject: Mapped[Words]
    # May create projects and users.
    instance: Mapped[bool] = mapped_column(server_default=text("false"), default=False)
    created_at: Mapped[CreatedAt]
    disabled_at: Mapped[Moment]


class LoginFailureRow(Base):
    """Failed attempts at one address, known or not: the throttle tells nobody which exist."""

    __tablename__ = "login_failure"
    __table_args__ = (Index(None, "at"),)
    # sha256 of the address in lower case.
    key: Mapped[str] = mapped_column(primary_key=True)
    failures: Mapped[int] = mapped_column(server_default=text("0"), default=0)
    at: Mapped[CreatedAt]
    locked_until: Mapped[Moment]


class RoleBindingRow(Base):
    """What a user may do in a project."""

    __tablename__ = "role_binding"
    __table_args__ = (
        Index(None, "user_id"),
        CheckConstraint("role in ('viewer', 'operator', 'approver', 'admin')", name="role"),
    )
    project_id: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.project.id"), primary_key=True)
    user_id: Mapped[Key] = mapped_column(ForeignKey(f"{SCHEMA}.user.id"))
    role: Mapped[str]
    created_by: Mapped[Words]
    created_at: Mapped[CreatedAt]


class SessionRow(Base):
    """A signed-in browser, by the hash of its cookie; reached by definer functions alone."""

    __tablename__ = "session"
    __table_args__ = (Index(None, "user_id"),)
    id: Mapped[OwnId]
    hash: Mapped[str] = mapped_column(unique=True)
    user_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.user.id"))
    # The project that it works in; chosen at sign-in, changed by the session itself.
    project_id: Mapped[Maybe] = mapped_column(ForeignKey(f"{SCHEMA}.project.id"))
    created_at: Mapped[CreatedAt]
    last_used_at: Mapped[Moment]
    expires_at: Mapped[CreatedAt]
    revoked_at: Mapped[Moment]


class SignInRow(Base):
    """A sign-in at an identity provider that has begun; used once. Reached by definer functions."""

    __tablename__ = "sign_in"
    state_hash: Mapped[str] = mapped_column(primary_key=True)
    document: Mapped[Exact] = mapped_column(nullable=False)
    expires_at: Mapped[CreatedAt]


class SecretRow(Base):
    """A secret, encrypted with AES-GCM and bound to project and id; never shown again."""

    __tablename__ = "secret"
    __table_args__ = (
        Index(
            "uq_secret_name",
            "project_id",
            "name",
            unique=True,
            postgresql_where=text("deleted_at is null"),
        ),
        CheckConstraint("use in ('production', 'rollouts')", name="use"),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    name: Mapped[str]
    use: Mapped[str] = mapped_column(server_default=text("'production'"), default="production")
    revision: Mapped[int] = mapped_column(server_default=text("1"), default=1)
    key_id: Mapped[str]
    nonce: Mapped[Bytes]
    ciphertext: Mapped[Bytes]
    created_by: Mapped[Words]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[CreatedAt]
    deleted_at: Mapped[Moment]
