"""Migrations: the Alembic environment and its revisions, shipped inside the package."""
