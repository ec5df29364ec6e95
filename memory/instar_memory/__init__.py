"""Memory banks: entries, operations, retrieval and context building."""
