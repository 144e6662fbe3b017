"""Case N8: a cell that prints far too much."""

import nbformat

from dskit.course import run_notebooks
from dskit.course.flood import Flood


def test_little_output_is_kept_as_it_is():
    flood = Flood(head=10, tail=10)
    assert flood.take("12345") == "12345" and flood.ending() == ""


def test_head_and_tail_are_kept_and_the_rest_is_counted():
    flood = Flood(head=4, tail=6)
    shown = "".join(flood.take(f"{i}\n") for i in range(100))
    assert shown == "0\n1\n"
    left_out = sum(len(f"{i}\n") for i in range(100)) - 10
    assert flood.ending() == f"\n[... {left_out} characters (96 lines) left out ...]\n98\n99\n"


def test_one_message_larger_than_everything_is_cut():
    flood = Flood(head=3, tail=3)
    assert flood.take("abcdefghij") == "abc"
    assert flood.ending() == "\n[... 4 characters (0 lines) left out ...]\nhij"


def test_what_fits_in_the_tail_is_not_cut():
    flood = Flood(head=3, tail=3)
    assert flood.take("abcdef") == "abc" and flood.ending() == "def"


def test_n8_a_cell_that_prints_200_000_lines(tmp_path):
    code = "for i in range(200_000):\n    print(f'line {i} of a flood')\n'the value'"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbformat.write(notebook, tmp_path / "flood.ipynb")
    [result] = run_notebooks([tmp_path / "flood.ipynb"], tmp_path / "out", {})
    assert result.passed
    assert result.executed.stat().st_size < 5_000_000
    [cell] = nbformat.read(result.executed, as_version=4).cells
    text = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    assert text.startswith("line 0 of a flood\n") and text.endswith("line 199999 of a flood\n")
    assert "left out" in text
    assert [o for o in cell.outputs if o.output_type == "execute_result"], "the cell's value is still there"
