"""The local model engine: a process of its own that serves the packaged open model."""
