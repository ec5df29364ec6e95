"""Revisions, in order. A revision that has been released is never edited; its SQL is frozen."""
