"""URLs of databases: one spelling for the driver, and the application's URL from the owner's."""

from __future__ import annotations

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from instar_core.errors import PrerequisiteError

__all__ = ["APP_ROLE", "DEFINER_ROLE", "OWNER_ROLE", "app_url", "driver_url", "without_password"]

OWNER_ROLE = "instar_owner"
APP_ROLE = "instar_app"
DEFINER_ROLE = "instar_definer"


def driver_url(url: str) -> URL:
    """The URL with the driver that Instar uses (psycopg 3).

    Args:
        url: ``postgresql://…`` or ``postgres://…``, with or without a driver.

    Raises:
        PrerequisiteError: If it is no PostgreSQL URL. The URL's password is never quoted.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise PrerequisiteError(
            "DATABASE_URL is not a URL.",
            remedy="Write postgresql://user:password@host:5432/database.",
        ) from error
    if parsed.drivername.split("+")[0] not in ("postgresql", "postgres"):
        raise PrerequisiteError(
            f"Instar stores everything in PostgreSQL; DATABASE_URL names {parsed.drivername!r}.",
            remedy="Write postgresql://user:password@host:5432/database.",
        )
    return parsed.set(drivername="postgresql+psycopg")


def app_url(owner_url: str, app_password: str) -> str:
    """The URL of the role ``instar_app`` in the database that ``owner_url`` names."""
    url = driver_url(owner_url).set(
        drivername="postgresql", username=APP_ROLE, password=app_password
    )
    return url.render_as_string(hide_password=False)


def without_password(url: URL) -> str:
    """The URL for a message: the password is hidden."""
    return url.render_as_string(hide_password=True)
