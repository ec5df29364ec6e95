"""Strategies: small parts that evolvers combine, one idea a file.

Each is a function or a class with one method, knows no evolver, and touches the outside only
through the Lab that it is given.
"""
