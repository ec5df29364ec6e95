"""Benchmarks and gates: every file here also runs as ``python -m benchmarks.NAME --json``."""
