"""Statistics: when a gain counts. Pure functions and small values; no scipy, no global state.

``eprocess`` the sequential evidence, ``elond`` the level over a stream of tests, ``sealed`` the
decision of one sealed test, ``power`` planning before a run; ``betting``, ``beta``, ``bootstrap``
and ``reports`` for comparison and display.
"""
