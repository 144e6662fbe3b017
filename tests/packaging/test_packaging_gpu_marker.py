"""The suite's own ``gpu(count)`` marker."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


@pytest.fixture
def suite(pytester):
    """A suite of three tests, in a process of its own whose torch sees some GPUs."""
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini("[pytest]\nmarkers =\n    gpu(count): needs GPUs\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpu(2)
        def test_two(): assert False

        @pytest.mark.gpu(1)
        def test_one(): pass

        def test_none(): pass
        """
    )

    def run(gpus: int):
        pytester.makepyfile(torch=f"class cuda:\n    device_count = staticmethod(lambda: {gpus})")
        return pytester.runpytest_subprocess("-rs")

    return run


def test_a_skip_says_how_many_gpus_are_needed(suite):
    result = suite(1)
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*needs 2 CUDA GPUs, found 1*"])
    result = suite(0)
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*needs 1 CUDA GPU, found 0*"])


def test_it_runs_where_there_are_enough(suite):
    suite(2).assert_outcomes(passed=2, failed=1)
