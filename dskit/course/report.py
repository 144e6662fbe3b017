"""What a run leaves beside the executed notebooks: their figures, their HTML pages, and an ``index.html``.

Nothing here may lose a result: what cannot be made is noted in the result, and the index says it.
"""

import base64
import platform
import re
from importlib import metadata, resources
from pathlib import Path
from urllib.parse import quote

import nbformat

from dskit.course.result import Result

FIGURES, INDEX = "figures", "index.html"
_SHOWN_PACKAGES = ("dskit", "deepspeed", "torch")


def remove_old(result: Result, out: Path) -> None:
    """Remove what an earlier run of this notebook left, so that nothing old stands beside new results."""
    figure = re.compile(re.escape(result.name) + r"-\d{2,}\.png")
    old = [path for path in (out / FIGURES).iterdir() if figure.fullmatch(path.name)]
    for path in [*old, result.executed, out / f"{result.name}.html", out / INDEX]:
        path.unlink(missing_ok=True)


def add(result: Result, results: list[Result], out: Path, *, index: bool = True) -> None:
    """Add one run's figures, and with ``index`` its HTML page and the index of all runs.

    Args:
        result: the run; its ``figures``, ``html`` and ``notes`` are filled in.
        results: all runs, also those that are still to come.
        out: folder of the results.
    """
    _try(result, "The figures could not be taken out", _figures, result, out)
    if index:
        _try(result, "The HTML page could not be made", _html, result, out)
        _try(result, "The index could not be written", write_index, results, out)


def _try(result: Result, what: str, step, *args) -> None:
    try:
        step(*args)
    except Exception as error:
        result.notes.append(f"{what}: {type(error).__name__}: {error}")


def _figures(result: Result, out: Path) -> None:
    if not result.executed.is_file():
        return
    for cell in nbformat.read(result.executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            png = output.get("data", {}).get("image/png")
            if png:
                path = out / FIGURES / f"{result.name}-{len(result.figures) + 1:02}.png"
                path.write_bytes(base64.b64decode(png))
                result.figures.append(path)


def _html(result: Result, out: Path) -> None:
    if not result.executed.is_file():
        return
    from nbconvert import HTMLExporter

    page, _ = HTMLExporter().from_filename(str(result.executed))
    page = _for_reading(page)
    path = out / f"{result.name}.html"
    path.write_text(page, encoding="utf-8")
    result.html = path


# nbconvert leaves code that a cell shows as Markdown in the font of the prose, where columns do not align.
_STYLE = """<style>
.jp-RenderedMarkdown pre, .jp-RenderedMarkdown code, .jp-RenderedHTML pre { font-family: monospace; }
.jp-RenderedMarkdown pre { background: #f7f7f7; padding: 0.6em; line-height: 1.4; overflow-x: auto; }
.dskit-back { font: 14px sans-serif; margin: 1em 2em; }
</style>
</head>"""
_LINK = re.compile(r'href="(?!https?:)([^"/]+)\.ipynb"')


def _for_reading(page: str) -> str:
    """A notebook's page with readable code, links to the other pages and a way back to the index."""
    page = page.replace("</head>", _STYLE, 1)
    page = re.sub(
        r"(<body[^>]*>)", rf'\1<p class="dskit-back"><a href="{INDEX}">all notebooks</a></p>', page, count=1
    )
    return _LINK.sub(r'href="\1.html"', page)


def write_index(results: list[Result], out: Path) -> Path:
    """Write ``index.html``: one self-contained page on all runs, and links to their files beside it."""
    from jinja2 import Environment

    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page.filters["href"] = lambda path: quote(Path(path).relative_to(out).as_posix())
    template = resources.files("dskit.course").joinpath("index.html.j2").read_text(encoding="utf-8")
    path = out / INDEX
    path.write_text(
        page.from_string(template).render(results=results, versions=_versions()), encoding="utf-8"
    )
    return path


def _versions() -> list[str]:
    found = []
    for package in _SHOWN_PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return [*found, f"Python {platform.python_version()}"]
