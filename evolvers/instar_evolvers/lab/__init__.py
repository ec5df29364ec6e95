"""The lab: effects that survive a crash, budgets that hold, and sealed tests, for any evolver.

``open_lab`` gives a :class:`DurableLab` over three parts: a backend (the real agent, or a world), a
journal and a sealed book. Journal and book exist here in memory; the service keeps them in
Postgres.
"""

from instar_evolvers.lab.acceptance import run_sealed_test
from instar_evolvers.lab.budget import Budget
from instar_evolvers.lab.config import LabConfig
from instar_evolvers.lab.durable import DurableLab, Proposed, open_lab
from instar_evolvers.lab.memory import MemoryBook, MemoryJournal, Tape

__all__ = [
    "Budget",
    "DurableLab",
    "LabConfig",
    "MemoryBook",
    "MemoryJournal",
    "Proposed",
    "Tape",
    "open_lab",
    "run_sealed_test",
]
