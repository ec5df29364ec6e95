"""The words every part of Instar uses: tasks, candidates, rollouts, usage, errors, statistics.

This package is the lowest floor of the house: it imports nothing of Instar and no database, server
or model library. Import the words from their modules (``from instar_core.tasks import Task``).
"""
