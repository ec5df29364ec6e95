"""Every kind on every registry: the conformance suite on the one in memory."""

from __future__ import annotations

import asyncio

import pytest

from instar.registry.kinds import list_kinds, open_kind
from instar_core.registry.conformance import CHECKS, Check
from instar_core.registry.memory import MemoryRegistry


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", list_kinds())
def test_memory_registry_conforms(kind: str, check: Check) -> None:
    """A registry in memory does with each kind what the suite asks for."""
    asyncio.run(check(MemoryRegistry(open_kind), open_kind(kind)))
