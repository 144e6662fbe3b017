"""The libraries that only the course needs: a missing one is named with the line that installs it."""

from importlib.util import find_spec

from dskit.errors import DskitError

# Module, and the package that brings it.
LIBRARIES = {
    "ipykernel": "ipykernel",
    "jinja2": "jinja2",
    "jupytext": "jupytext",
    "nbclient": "nbclient",
    "nbconvert": "nbconvert",
    "nbformat": "nbformat",
    "papermill": "papermill",
    "yaml": "pyyaml",
}


def need_libraries() -> None:
    """Check that the course's libraries are installed; none is imported.

    Raises:
        DskitError: naming those that are missing, and how to install them.
    """
    missing = [package for module, package in LIBRARIES.items() if find_spec(module) is None]
    if missing:
        raise DskitError(
            "The course needs libraries that are not installed.",
            f"Missing: {', '.join(missing)}.",
            "Install them with: pip install 'dskit[workshop]' (in a checkout: make workshop)",
        )
