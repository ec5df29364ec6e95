"""Redaction lives in :mod:`instar.redaction`, below everything that logs."""

from __future__ import annotations

from instar.redaction import MASK, redact, redact_text, register_secret

__all__ = ["MASK", "redact", "redact_text", "register_secret"]
