"""``python -m instar``: the same as the command ``instar``."""

from instar.cli.main import main

if __name__ == "__main__":
    main()
