"""The only place with SQL: tables, migrations, sessions and store functions."""
