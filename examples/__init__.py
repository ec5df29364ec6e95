"""Examples that run: each folder is a complete agent with its tools and tasks."""
