"""The course: its notebooks, run through papermill, and kept as readable texts.

- ``run_notebooks``: runs notebooks in the current environment, each cell with a deadline, and leaves the
  executed copies, their figures and an ``index.html``.
- ``dskit.course.places``: where the notebooks are, and what a name on the command line means.
- ``dskit.course.pairs``: each notebook beside its ``py:percent`` text.

Needs the extra ``workshop``: importing this without it raises a ``DskitError`` that names what is missing.
"""

from dskit.course.extras import need_libraries

need_libraries()  # before the rest, which imports them

from dskit.course.execute import DEFAULT_CELL_DEADLINE, run_notebooks  # noqa: E402
from dskit.course.result import Failure, Result  # noqa: E402

__all__ = ["DEFAULT_CELL_DEADLINE", "Failure", "Result", "run_notebooks"]
