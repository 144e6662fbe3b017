"""What the kit raises when it can say what went wrong.

A message has three parts, in this order: what happened, what was found, what to do.
"""


class DskitError(Exception):
    """An error with a clear cause: the command line prints it without a traceback and exits with 2.

    Args:
        happened: what happened, one sentence.
        found: what was found, with the value that was bad.
        todo: what the reader can do about it.
    """

    exit_status = 2

    def __init__(self, happened: str, found: str = "", todo: str = ""):
        self.happened, self.found, self.todo = happened, found, todo
        super().__init__(happened, found, todo)  # all three, so that the error survives pickling

    def __str__(self) -> str:
        return "\n".join(part for part in (self.happened, self.found, self.todo) if part)
