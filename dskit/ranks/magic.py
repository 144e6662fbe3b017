"""``%%px``: run a cell on every rank of the current group."""

from IPython import get_ipython
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from dskit.ranks.notebook import current


@magics_class
class RankMagics(Magics):
    """The magic, with the kit's deadlines and error handling."""

    @magic_arguments()
    @argument("--deadline", type=float, default=None, help="seconds that the cell may take")
    @argument("--raises", default=None, metavar="NAME", help="an exception that every rank must raise")
    @line_cell_magic
    def px(self, line: str, cell: str | None = None):
        """Run the cell on every rank; as ``%px statement``, run one line."""
        if cell is None:
            current().run(line)
            return
        options = parse_argstring(self.px, line)
        current().run(cell, deadline=options.deadline, raises=options.raises)


def register() -> None:
    """Make ``%%px`` known to this kernel; does nothing outside IPython."""
    shell = get_ipython()
    if shell is not None:
        shell.register_magics(RankMagics)
