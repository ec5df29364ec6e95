"""Tools: what an agent can do besides talking, from MCP servers over stdio and Python functions."""
