"""The Instar service: store, ledger, models, runtime, rollouts, evolution, jobs, API and CLI."""

__version__ = "0.1.0"
