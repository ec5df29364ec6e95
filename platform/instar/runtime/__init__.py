"""The agent loop, its tools and the MCP client."""
