"""ipyparallel's controller, ended with the process that started it."""

import sys

from ipyparallel.controller.app import main

from dskit.ranks.family import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    sys.exit(main())
