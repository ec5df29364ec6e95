"""Names: which keys, headers and environment variables say that their value is secret."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["MASK", "is_secret_name", "is_secret_variable"]

MASK = "[redacted]"
_SECRET_NAME = re.compile(
    r"(?i)(api[-_]?key|secret|passw(or)?d|passphrase|credential|private[-_]?key|authorization"
    r"|cookie|bearer|(access|refresh|auth|id|session|api|hf|github|gitlab|slack)[-_]?token|^token$)"
)
# Variables and options are named more tersely than JSON keys: DEPLOY_KEY, BOT_TOKEN, DB_PWD.
_SECRET_VARIABLE = re.compile(
    # PWD alone is where a process works.
    r"(?i)((^|[-_])(keys?|tokens?|pat|pass|auth|creds|dsn|signature)|[-_]pwd)$"
)
# What holds the place of a secret, or counts it, is none: KEY_FILE, TOKEN_PATH, MAX_TOKENS.
_HARMLESS = re.compile(
    r"(?i)(([-_]|^)(file|path|dir|name|env|id|url|uri|header|type|kind|ttl|limit|count|length)$"
    r"|^(max|min|num|input|output|total|prompt|completion)[-_]?tokens?$)"
)


def is_secret_name(name: str) -> bool:
    """Whether a key of a structure, or a header's name, says that its value is secret."""
    return _SECRET_NAME.search(name) is not None


@lru_cache(maxsize=4096)
def is_secret_variable(name: str) -> bool:
    """Whether an environment variable's or option's name says that its value is secret."""
    if _HARMLESS.search(name):
        return False
    return is_secret_name(name) or _SECRET_VARIABLE.search(name) is not None
