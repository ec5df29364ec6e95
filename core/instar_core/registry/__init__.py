"""Registry: everything an agent is made of, versioned and labelled, behind one protocol.

:class:`instar_core.registry.protocol.Registry` has the verbs; ``MemoryRegistry`` keeps everything
in this process, the service keeps it in Postgres, and one conformance suite holds both to it.
"""
