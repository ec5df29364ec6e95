"""The built console, served as static files."""
