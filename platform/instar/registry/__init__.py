"""Registry: every kind of artifact with the same verbs, over the store."""
