"""Audit: seals the chain in signed checkpoints, keeps them outside the database, and verifies."""
