"""Worlds: rollout backends with a known answer, so that a method's claims can be checked.

Evolvers never import this package (an import contract says so).
"""

from instar_evolvers.worlds.spec import WorldSpec, parse_spec
from instar_evolvers.worlds.world import World, WorldTasks, open_world

__all__ = ["World", "WorldSpec", "WorldTasks", "open_world", "parse_spec"]
