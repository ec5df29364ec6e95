"""Secrets behind the routes: set under If-Match, shown without their values."""

from __future__ import annotations

from typing import cast

from fastapi import Response

from instar.api.auth import Caller
from instar.api.preconditions import check_match
from instar.api.schemas_secrets import SecretIn, SecretOut
from instar.api.views import set_etag
from instar.store.secret_box import SecretUse
from instar.store.secrets import NewSecret, find_secret, put_secret
from instar.store.tables import SecretRow

__all__ = ["save_secret", "secret_out"]


def secret_out(row: SecretRow) -> SecretOut:
    """A secret as it is shown: neither its value nor its length nor a hash of it."""
    return SecretOut(
        id=row.id,
        name=row.name,
        use=cast(SecretUse, row.use),
        revision=row.revision,
        key_id=row.key_id,
        created_by=row.created_by,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


async def save_secret(
    caller: Caller, name: str, wanted: SecretIn, match: str | None, response: Response
) -> SecretOut:
    """Sets a secret; one that exists only for whoever has seen its present revision.

    Raises:
        ProblemError: ``precondition-required`` or ``precondition-failed``; nothing is changed.
    """
    async with caller.db.transaction(caller.project_id) as session:
        now = await find_secret(session, caller.project_id, name, lock=True)
        check_match(match, None if now is None else now.revision, f"The secret {name!r}")
        new = NewSecret(name, wanted.value.get_secret_value(), wanted.use)
        row = await put_secret(session, caller.project_id, new, caller.service.keys, caller.author)
        set_etag(response, row.revision)
        return secret_out(row)
