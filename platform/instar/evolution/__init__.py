"""Drives evolvers durably: journal, sealed tests, proposals, promotions."""
