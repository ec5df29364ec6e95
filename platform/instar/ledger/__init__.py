"""Prices and budgets: what a call costs and what is left."""
