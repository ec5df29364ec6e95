"""The sample: a ticket system as a private MCP server, its policy, and a task set for it."""
