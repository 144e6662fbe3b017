"""For the whole suite: a test marked ``gpu(count)`` is skipped where there are fewer CUDA GPUs."""

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("gpu")
    if marker is None:
        return
    needed = marker.args[0]
    import torch  # only where a test asks for it: it takes seconds

    found = torch.cuda.device_count()
    if found < needed:
        pytest.skip(f"needs {needed} CUDA GPU{'s' * (needed != 1)}, found {found}")
