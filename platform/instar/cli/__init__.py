"""The command line: thin over the same functions as the API."""
