"""Task sets, verifiers, environments and the rollout engine."""
