"""Verifiers: judgements in [0, 1] with feedback, from data alone and the same on every call."""
