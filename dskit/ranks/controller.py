"""ipyparallel's controller, ended with the process that started it."""

import sys

from ipyparallel.controller.app import main

from dskit.ranks.prepare import limit_orphans

if __name__ == "__main__":
    limit_orphans()
    sys.exit(main())
