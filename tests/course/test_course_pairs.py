"""A notebook and its text."""

import nbformat
import pytest
from nbformat import v4

from dskit.course import pairs
from dskit.errors import DskitError

TEXT = """# ---
# jupyter:
#   jupytext:
#     formats: ipynb,text//py:percent
# ---

# %% [markdown]
# # Title

# %% tags=["parameters"]
steps = 10  # >= 6

# %%
%%px
print(1)

# %%
steps

# %%
steps
"""


@pytest.fixture
def folder(tmp_path):
    text = tmp_path / "text" / "01_a.py"
    text.parent.mkdir()
    text.write_text(TEXT)
    return tmp_path


def edit(folder, change):
    notebook = nbformat.read(folder / "01_a.ipynb", as_version=4)
    change(notebook)
    nbformat.write(notebook, folder / "01_a.ipynb")


def test_sync_writes_what_the_text_says_and_only_then(folder):
    assert pairs.sync(folder) == [folder / "01_a.ipynb"]
    first = (folder / "01_a.ipynb").read_bytes()
    assert pairs.check(folder) == []
    assert pairs.sync(folder) == []
    (folder / "01_a.ipynb").unlink()
    pairs.sync(folder)
    assert (folder / "01_a.ipynb").read_bytes() == first  # no random ids
    notebook = nbformat.read(folder / "01_a.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", *["code"] * 4]
    assert notebook.cells[1].metadata.tags == ["parameters"]
    assert notebook.cells[2].source == "%%px\nprint(1)"
    assert len({cell.id for cell in notebook.cells}) == 5
    assert notebook.metadata.kernelspec.name == "python3"
    assert "jupytext" not in notebook.metadata


def test_a_new_cell_leaves_the_ids_of_the_others(folder):
    pairs.sync(folder)
    before = [cell.id for cell in nbformat.read(folder / "01_a.ipynb", as_version=4).cells]
    text = folder / "text" / "01_a.py"
    text.write_text(TEXT.replace("# %% tags", "# %%\nnew = 1\n\n# %% tags"))
    pairs.sync(folder)
    after = [cell.id for cell in nbformat.read(folder / "01_a.ipynb", as_version=4).cells]
    assert after[:1] + after[2:] == before


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda n: n.cells[1].update(source="steps = 11"), "cell 2 of 5: its source differs"),
        (lambda n: n.cells[1].metadata.update(tags=[]), "cell 2 of 5: its metadata differs"),
        (lambda n: n.cells.insert(0, n.cells.pop(1)), "cell 1 of 5: its cell_type differs"),
        (lambda n: n.cells.pop(), "has 4 cells, its text 5"),
        (lambda n: n.cells[1].update(execution_count=1), "cell 2 of 5: has an execution count"),
        (lambda n: n.cells[1].outputs.append(v4.new_output("stream", text="x")), "cell 2 of 5: has outputs"),
        (lambda n: n.metadata.update(kernelspec={"name": "x", "display_name": "x"}), "metadata differ"),
    ],
)
def test_check_names_what_differs(folder, change, line):
    pairs.sync(folder)
    edit(folder, change)
    found = pairs.check(folder)
    assert any(line in each and each.startswith("01_a: ") for each in found), found
    pairs.sync(folder)
    assert pairs.check(folder) == []


def test_check_names_a_missing_partner(folder):
    assert pairs.check(folder) == ["01_a: the notebook is missing"]
    pairs.sync(folder)
    (folder / "02_b.ipynb").write_bytes((folder / "01_a.ipynb").read_bytes())
    assert pairs.check(folder) == ["02_b: has no text text/02_b.py"]
    (folder / "01_a.ipynb").write_text("{")
    assert "01_a: the notebook cannot be read" in pairs.check(folder)[0]


def test_no_texts_is_an_error(tmp_path):
    with pytest.raises(DskitError, match="no texts"):
        pairs.sync(tmp_path)
    with pytest.raises(DskitError, match="no texts"):
        pairs.check(tmp_path)
