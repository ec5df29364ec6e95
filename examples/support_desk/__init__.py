"""The sample: a small ticket system as a private MCP server, its policy, and a task set written for it."""
