"""For tests of the CPU runtime: where the installed release lies, and a process group of one rank."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def deepspeed_root() -> Path:
    """Folder of the installed ``deepspeed`` package, which is not imported."""
    return Path(importlib.util.find_spec("deepspeed").origin).parent


@pytest.fixture(scope="module")
def solo():
    """A gloo group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()
