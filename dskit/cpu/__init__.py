"""DeepCompile's native layer on CPU: DeepSpeed's own compile passes on ranks with no GPU.

``install()`` puts a Python implementation of the ``dc`` operators and of the native module where DeepSpeed
looks for them. DeepSpeed's Python code runs unmodified.
"""

from pathlib import Path

_installed = None


def install():
    """Install the CPU runtime in this process, before the first engine is made. Idempotent.

    Returns:
        The handle that serves DeepCompile (``dskit.cpu.handle.CpuHandle``).

    Raises:
        DskitError: this process has made a CUDA engine or loaded the native operators, the release
            declares operators in a form that is not known, or scipy is missing.
    """
    global _installed
    if _installed is None:
        _installed = _install()
    return _installed[0]


def installed() -> bool:
    """Whether the CPU runtime serves this process."""
    return _installed is not None


def _install():
    import deepspeed
    from deepspeed.accelerator import set_accelerator
    from deepspeed.compile import util

    from dskit.cpu import adapt, operators
    from dskit.cpu.accelerator import DeepCompileCpuAccelerator
    from dskit.cpu.handle import CpuHandle

    handle = CpuHandle()
    library = operators.register(handle, Path(deepspeed.__file__).parent)
    set_accelerator(DeepCompileCpuAccelerator())
    util.dc_handle = handle
    adapt.declare_support()
    adapt.run_passes_without_python_dispatcher()
    adapt.limit_gather_profile()
    adapt.use_torch_adam()
    return handle, library
