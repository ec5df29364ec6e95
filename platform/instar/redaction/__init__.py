"""Redaction: takes secrets out of what is logged, shown or stored, by value and by key name.

A value is known when it was registered, or when it lies in an environment variable whose name says
that it is secret. Known values are found in the clear and in the encodings that carry them through
logs and URLs; other text is searched for the usual shapes of credentials.
"""

from __future__ import annotations

from instar.redaction.logs import install_log_redaction
from instar.redaction.mask import (
    mask_known,
    redact,
    redact_text,
    register_secret,
    scope_redaction,
)
from instar.redaction.names import MASK, is_secret_name, is_secret_variable

__all__ = [
    "MASK",
    "install_log_redaction",
    "is_secret_name",
    "is_secret_variable",
    "mask_known",
    "redact",
    "redact_text",
    "register_secret",
    "scope_redaction",
]
