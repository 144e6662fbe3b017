"""The command line: ``dskit run``, ``dskit notebooks``, ``dskit pair``.

Importing it imports neither torch nor DeepSpeed nor papermill: each command brings what it needs.
"""

import contextlib
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from dskit.errors import DskitError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # an unexpected exception is shown as Python shows it
    help="DeepSpeed's DeepCompile under ZeRO-3, and what frozen parameters do to it.",
)


def main() -> None:
    """The entry point. An error with a clear cause is a message and an exit status, not a traceback."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(prog_name="dskit")
    except DskitError as error:
        print(f"dskit: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


def _terminate(number: int, _) -> None:
    """Leave by an exception, so that kernels and ranks are stopped on the way out."""
    sys.exit(128 + number)


# Options end at the script: what follows it is the script's own, unknown options too.
@app.command(context_settings={"allow_interspersed_args": False})
def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script, unchanged.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its arguments.")] = None,
    ranks: Annotated[int, typer.Option(help="How many rank processes.")] = 2,
    device: Annotated[str, typer.Option(help="auto, cuda, cuda-shared or cpu.")] = "auto",
    guard: Annotated[str, typer.Option(help="The fix: auto, on or off.")] = "auto",
    backend: Annotated[str, typer.Option(help="DeepCompile's backend: auto, inductor or eager.")] = "auto",
) -> None:
    """Run a script on rank processes, with the fix for frozen parameters on or off."""
    from dskit.ranks.launch import launch

    raise typer.Exit(launch(script, args or [], ranks=ranks, device=device, guard=guard, backend=backend))


@app.command()
def notebooks(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Names, numbers or paths of notebooks; all without one."),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="A parameter; may be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("out"),
    cell_deadline: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long a cell may take.  [default: 300]")
    ] = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Write no HTML pages.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Print the peak memory of all processes (sum of PSS).")
    ] = False,
) -> None:
    """Run the course's notebooks, and leave executed copies, figures and an index."""
    from dskit.course import DEFAULT_CELL_DEADLINE, places, run_notebooks
    from dskit.course.memory import PeakMemory
    from dskit.course.progress import Terminal

    with Terminal() as terminal, PeakMemory() if memory else contextlib.nullcontext() as peak:
        results = run_notebooks(
            places.find(names or []),
            out,
            _parameters(parameter or []),
            cell_deadline=DEFAULT_CELL_DEADLINE if cell_deadline is None else cell_deadline,
            progress=terminal,
            index=not no_index,
        )
    _show(results, out.resolve(), index=not no_index)
    if peak is not None:
        print(f"Peak memory: {peak}: kernel, ranks, controller and this command, sum of PSS.")
    raise typer.Exit(0 if all(result.passed for result in results) else 1)


def _parameters(given: list[str]) -> dict:
    from dskit.course.parameters import Text

    parameters = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name.isidentifier():
            raise DskitError(
                "A parameter is given as NAME=VALUE.", f"Found: {item!r}.", "For instance: -p steps=10"
            )
        if name in parameters:
            first = parameters[name].text
            raise DskitError(f"Parameter {name} is given twice.", f"Found: {first!r} and {value!r}.")
        parameters[name] = Text(value)
    return parameters


def _show(results: list, out: Path, *, index: bool) -> None:
    """Say what failed and why, then where the results are."""
    for result in results:
        if result.failure:
            failure = result.failure
            typer.echo(f"\n{result.name} failed {failure.place}: {failure.reason}")
            if failure.source:
                typer.echo("\n".join(f"    {line}" for line in failure.source.splitlines()))
            typer.echo(failure.traceback)
        for note in result.notes:
            typer.echo(f"{result.name}: {note}")
    passed = sum(result.passed for result in results)
    where = out / "index.html" if index else out
    typer.echo(f"\n{passed} of {len(results)} notebooks passed. Results: {where}")


@app.command()
def pair(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a pair differs.")] = False,
) -> None:
    """Write the notebooks from their texts, or check that they agree."""
    from dskit.course import pairs, places

    folder = places.notebooks_folder()
    if not check:
        for notebook in pairs.sync(folder):
            typer.echo(f"written: {notebook}")
        return
    differences = pairs.check(folder)
    for line in differences:
        typer.echo(line, err=True)
    if differences:
        typer.echo("Edit the text, then: dskit pair", err=True)
        raise typer.Exit(1)
    typer.echo(f"{len(pairs.texts(folder))} notebooks agree with their texts.")
