"""What stands beside an executed notebook."""

from html.parser import HTMLParser

import nbconvert
import nbformat
from course_cells import FIGURE, PARAMETERS

from dskit.course import Failure, Result, run_notebooks
from dskit.course.report import write_index
from dskit.course.result import FAILED, PASSED, WAITING, strip_ansi


class Page(HTMLParser):
    """Tags, links and text of a page."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.links, self.text = [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("href", "src")]

    def handle_data(self, data):
        self.text += data


def test_figures_pages_and_index_of_a_run(make, out):
    good = make("01_good", PARAMETERS, FIGURE, FIGURE)
    bad = make("02_bad", FIGURE, "raise ValueError('<script>alert(1)</script>')")
    results = run_notebooks([good, bad], out, {"backend": "<i>"})
    names = ["01_good-01.png", "01_good-02.png", "02_bad-01.png"]
    assert sorted(path.name for path in (out / "figures").iterdir()) == names
    for name in names:
        assert (out / "figures" / name).read_bytes().startswith(b"\x89PNG\r\n")
    page = Page((out / "index.html").read_text())
    for link in ["01_good.html", "01_good.ipynb", "02_bad.html", *[f"figures/{name}" for name in names]]:
        assert link in page.links
        assert (out / link).is_file()
    assert "1 of 2 notebooks passed" in page.text
    assert "02_bad failed in cell 2" in page.text
    assert "Traceback (most recent call last)" in page.text
    assert "<script>alert(1)</script>" in page.text  # as text
    assert "script" not in page.tags and "i" not in page.tags
    assert "steps = 10" in page.text and "backend = '<i>'" in page.text
    assert not [link for link in page.links if ":" in link]  # nothing from elsewhere
    assert "plt.plot([1, 2])" in Page((out / "01_good.html").read_text()).text
    assert [result.notes for result in results] == [[], []]


def test_a_second_run_leaves_nothing_of_the_first(make, out):
    run_notebooks([make("01_a", FIGURE, FIGURE)], out)
    (out / "figures" / "01_a-b-01.png").write_text("another notebook's")
    run_notebooks([make("01_a", FIGURE)], out, index=False)
    assert sorted(path.name for path in (out / "figures").iterdir()) == ["01_a-01.png", "01_a-b-01.png"]
    assert not (out / "index.html").exists() and not (out / "01_a.html").exists()


def test_a_page_that_cannot_be_made_loses_nothing(make, out, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no template")

    monkeypatch.setattr(nbconvert.HTMLExporter, "from_filename", broken)
    (result,) = run_notebooks([make("01_a", FIGURE)], out)
    assert result.passed and result.html is None
    assert nbformat.read(out / "01_a.ipynb", as_version=4).cells[0].outputs
    page = Page((out / "index.html").read_text())
    assert "The HTML page could not be made: RuntimeError: no template" in page.text
    assert "01_a.ipynb" in page.links and "01_a.html" not in page.links


def test_index_of_every_state(tmp_path):
    executed = tmp_path / "a #1.ipynb"
    executed.write_text("{}")
    results = [
        Result(executed, executed, state=PASSED, seconds=1.25),
        Result(tmp_path / "b.ipynb", tmp_path / "b.ipynb", state=WAITING),
        Result(
            tmp_path / "c.ipynb",
            tmp_path / "c.ipynb",
            state=FAILED,
            seconds=0.1,
            failure=Failure("no kernel"),
        ),
    ]
    page = Page(write_index(results, tmp_path).read_text())
    assert "a%20%231.ipynb" in page.links
    assert "b.ipynb" not in page.links  # there is no such file
    assert "waiting" in page.text and "c failed before its first cell" in page.text


def test_escape_sequences_are_cut():
    assert (
        strip_ansi("\x1b[0;31mred\x1b[0m \x1b[38;5;9mx\x1b[K \x1b]8;;u\x1b\\link\x1b]8;;\x07") == "red x link"
    )
