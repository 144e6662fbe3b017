"""What a notebook declares, and which values it takes."""

import math
from pathlib import Path

import numpy as np
import pytest
from course_cells import PARAMETERS, code

from dskit.course import run_notebooks
from dskit.course.parameters import Text, check, declared, plain
from dskit.errors import DskitError


def given(notebook: Path, **values):
    return check([notebook], values)[notebook]


@pytest.fixture
def notebook(make):
    return make("01_first", "print('before')", PARAMETERS)


def test_declared_reads_names_and_defaults_in_order(notebook):
    assert declared(notebook) == {
        "steps": 10,
        "lr": 0.1,
        "backend": "eager",
        "verbose": False,
        "sizes": [1, 2],
    }


def test_declared_reads_annotations_and_skips_what_is_no_assignment(make):
    cell = code(
        'import os\nlr: float = 1\nseed: int = None\nhome = os.sep\nos.x = 1\ntext = "a=b # c"', "parameters"
    )
    assert declared(make("a", cell)) == {"lr": 1.0, "seed": int, "home": ..., "text": "a=b # c"}


def test_a_notebook_without_the_tag_declares_nothing(make):
    assert declared(make("a", "steps = 10")) == {}


def test_a_parameters_cell_that_is_no_python_is_named(make):
    with pytest.raises(DskitError, match="the cell tagged 'parameters'"):
        declared(make("01_odd", code("%matplotlib inline\nsteps = 1", "parameters")))


def test_n1_misspelt_parameter_offers_the_nearest_before_a_kernel_starts(notebook, out, started):
    with pytest.raises(DskitError) as caught:
        run_notebooks([notebook], out, {"stpes": 3})
    assert "stpes" in caught.value.happened
    assert "01_first" in caught.value.found
    assert "Did you mean steps (of 01_first)?" in caught.value.todo
    assert started == []
    assert not out.exists()


def test_n1_control_a_known_parameter_does_start_a_kernel(notebook, out, started):
    (result,) = run_notebooks([notebook], out, {"steps": 3})
    assert len(started) == 1
    assert "no process in this test" in result.failure.reason


def test_n1_unknown_with_no_near_name_lists_what_there_is(notebook):
    with pytest.raises(DskitError, match="Declared are: backend, lr, sizes, steps, verbose"):
        given(notebook, zzz=1)


def test_n1_a_parameter_goes_to_those_that_declare_it(make):
    first = make("01_first", code("steps = 1", "parameters"))
    second = make("02_second", code("seed = 1", "parameters"))
    assert check([first, second], {"steps": 5}) == {first: {"steps": 5}, second: {}}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("steps", True, "whole number"),
        ("steps", 1.5, "whole number"),
        ("steps", 2.0, "write 2"),
        ("steps", "2", "whole number"),
        ("steps", None, "whole number"),
        ("steps", Text("ten"), "whole number"),
        ("lr", True, "a number"),
        ("lr", Text("fast"), "a number"),
        ("verbose", 1, "True or False"),
        ("backend", 1, "text"),
        ("sizes", Text("3"), "a list"),
        ("sizes", {1, 2}, "no literal form"),
        ("sizes", np.arange(2), "no literal form"),
        ("backend", b"eager", "no literal form"),
    ],
)
def test_n1_a_value_of_another_type_is_refused(notebook, name, value, wanted):
    with pytest.raises(DskitError, match=f"(?si)Parameter {name} of 01_first.*{wanted}"):
        given(notebook, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("steps", 3, 3),
        ("steps", Text("3"), 3),
        ("steps", np.int64(3), 3),
        ("lr", 1, 1.0),
        ("lr", Text("1e-4"), 1e-4),
        ("lr", Text("1"), 1.0),
        ("lr", np.float32(0.5), 0.5),
        ("verbose", Text("true"), True),
        ("verbose", np.bool_(True), True),
        ("backend", Text("on"), "on"),
        ("backend", Text("001"), "001"),
        ("backend", Text(""), ""),
        ("backend", np.str_("x"), "x"),
        ("sizes", (1, (2, 3)), [1, [2, 3]]),
        ("sizes", Text("[3, 4]"), [3, 4]),
    ],
)
def test_a_value_arrives_in_the_declared_type(notebook, name, value, right):
    found = given(notebook, **{name: value})[name]
    assert found == right
    assert type(found) is type(right)


def test_a_default_of_unknown_type_takes_any_plain_value(make):
    notebook = make("a", code("seed = None\nhome = print()", "parameters"))
    assert given(notebook, seed=3, home=Path("x")) == {"seed": 3, "home": "x"}


@pytest.mark.parametrize("value", [[np.int64(1)], {"a": (1,)}, {"a": {"b": Path("c")}}])
def test_plain_converts_what_is_nested(value):
    assert plain(value) in ([1], {"a": [1]}, {"a": {"b": "c"}})
    assert "numpy" not in repr(plain(value)) and "(" not in repr(plain(value))


def test_plain_keeps_what_is_not_finite():
    assert math.isnan(plain(np.float64("nan")))


@pytest.mark.parametrize("value", [{1: 2}, object(), 1j])
def test_plain_refuses_what_papermill_would_write_as_text(value):
    with pytest.raises(TypeError, match="no literal form"):
        plain(value)
