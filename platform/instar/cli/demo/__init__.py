"""``instar demo``: the main job from nothing to a promoted agent, through the REST API alone.

Every step asks first whether it was done already, and the run is started under an idempotency key
made of what it is about. So the command can be killed anywhere and started again: it goes on where
the service stands, and nothing is paid twice.
"""

from __future__ import annotations

from instar.cli.demo.main import main

__all__ = ["main"]
