"""DeepSpeed's CPU accelerator, with what DeepCompile's profilers need and the original leaves out."""

import time

import torch
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator


class HostEvent:
    """A point in time on the host, with the interface of ``torch.cuda.Event``.

    Work on a CPU is done when the call returns, so recording is reading the clock.
    """

    def __init__(self, enable_timing: bool = False, **_):
        self._seconds = None

    def record(self, stream=None) -> None:
        """Take the time."""
        self._seconds = time.perf_counter()

    def elapsed_time(self, end: "HostEvent") -> float:
        """Milliseconds from this event to ``end``."""
        return (end._seconds - self._seconds) * 1e3

    def query(self) -> bool:
        """Whether the work before the event is done: always."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def wait(self, stream=None) -> None:
        """Nothing to wait for."""


class _CpuRandom:
    """``torch.random`` whose ``fork_rng`` takes a CPU device: the CPU generator is forked in any case."""

    def __getattr__(self, name):
        return getattr(torch.random, name)

    @staticmethod
    def fork_rng(devices=None, enabled=True, **kwargs):
        others = [d for d in devices or [] if torch.device(d).type != "cpu"]
        return torch.random.fork_rng(devices=others, enabled=enabled)


class DeepCompileCpuAccelerator(CPU_Accelerator):
    """The CPU as a device on which DeepCompile's passes and profilers run."""

    def current_device(self):
        """A device that ``torch.device`` takes (the original gives LOCAL_RANK, which means a GPU)."""
        return "cpu"

    def random(self):
        """The random module, with a ``fork_rng`` that takes CPU devices."""
        return _CpuRandom()

    @property
    def Event(self):
        """An event class (the original gives None)."""
        return HostEvent

    def create_op_builder(self, op_name):
        """An op builder, or None for the shared-memory collectives of CPU inference.

        DeepSpeed compiles those in C++ whenever a process group is made, over a minute on a laptop, and
        no training collective uses them.
        """
        return None if op_name == "ShareMemCommBuilder" else super().create_op_builder(op_name)
