"""``python -m instar.embedded``: the supervisor in the foreground, for the background start."""

from __future__ import annotations

import sys

from instar.embedded.up import up
from instar.redaction import redact_text
from instar.settings import load_settings, prepare_process
from instar_core.errors import InstarError, UserError


def main() -> int:
    """Runs until it is told to stop; 2 for what a person must put right, 1 for other trouble."""
    prepare_process()
    try:
        up(load_settings())
    except InstarError as error:
        print(redact_text(f"error: {error}"), file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
