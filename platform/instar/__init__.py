"""The Instar service: store, ledger, models, runtime, rollouts, evolution, jobs, API and CLI."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - installed by hand into an older Python
    raise SystemExit(
        "Instar needs Python 3.11 or later; this is Python "
        + ".".join(str(part) for part in sys.version_info[:3])
        + ". Make the environment anew with a newer one, such as: make setup PYTHON=python3.11"
    )

__version__ = "0.1.0"
