"""``python -m dskit``: the command line without its script."""

from dskit.cli import main

if __name__ == "__main__":
    main()
