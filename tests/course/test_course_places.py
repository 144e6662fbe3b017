"""Where the notebooks are, and what a name means."""

from pathlib import Path

import pytest

import dskit
from dskit.course import places
from dskit.errors import DskitError


@pytest.fixture
def course(make):
    make("01_first", "1")
    make("extra", "1")
    return make("02_second", "1").parent


def test_the_folder_is_found_from_inside_and_below(course, monkeypatch, tmp_path):
    for start in [course.parent, course, course / "text", course.parent / "a" / "b"]:
        start.mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(start)
        assert places.notebooks_folder() == course


def test_else_it_is_the_checkouts(tmp_path):
    checkout = Path(dskit.__file__).resolve().parent.parent / "notebooks"
    assert places.notebooks_folder(tmp_path) == checkout


def test_none_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(dskit, "__file__", str(tmp_path / "site" / "dskit" / "__init__.py"))
    with pytest.raises(DskitError, match="not found"):
        places.notebooks_folder(tmp_path)


@pytest.mark.parametrize("name", ["02", "2", "02_second", "02_second.ipynb", "notebooks/02_second.ipynb"])
def test_a_name_a_number_and_a_path_mean_the_same(course, name):
    assert places.find([name, "02_second"], course) == [course / "02_second.ipynb"]


def test_no_name_means_the_numbered_ones(course):
    assert [path.stem for path in places.find([], course)] == ["01_first", "02_second"]
    assert [path.stem for path in places.find(["extra"], course)] == ["extra"]


def test_a_path_needs_no_course(course, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    assert places.find([str(course / "extra.ipynb")]) == [course / "extra.ipynb"]


def test_an_unknown_name_offers_the_nearest(course, make):
    with pytest.raises(DskitError, match=r"(?s)no notebook 02_secnd.*Did you mean 02_second\?"):
        places.find(["02_secnd"], course)
    make("02_third", "1")
    with pytest.raises(DskitError, match="More than one notebook has the number 2"):
        places.find(["2"], course)


def test_a_course_without_notebooks_says_what_to_do(tmp_path):
    with pytest.raises(DskitError, match="dskit pair"):
        places.find([], tmp_path)
