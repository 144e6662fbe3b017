"""The kernel that a notebook runs in: this Python's own, whatever name the notebook asks for.

A kernel spec found by name may belong to another environment, or not exist. Here no spec is looked up and
none is installed: the kernel is ``sys.executable -m ipykernel_launcher``.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from ipykernel.kernelspec import get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from dskit.ranks.output import LOG_VARIABLE

KERNEL_NAME = "python3"
_LONGEST_SOCKET_PATH = 100  # bytes; the system's limit is 108 on Linux and 104 on macOS

# A kernel that is interrupted on its way out says so on the terminal; what fails in a cell stands there.
_QUIET = ["--IPKernelApp.log_level=CRITICAL"]


class HereKernelSpecs(KernelSpecManager):
    """Knows one kernel, under every name: this Python's."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        # As in an activated environment: torchrun and ninja are found beside this Python.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        return KernelSpec(resource_dir="", env={"PATH": path, LOG_VARIABLE: "1"}, **get_kernel_dict(_QUIET))


class HereKernelManager(AsyncKernelManager):
    """Starts this Python's kernel, and talks to it over sockets in a folder of its own.

    TCP ports are chosen before the kernel binds them, so that two runs that start at once can choose the
    same one, and one of their kernels dies. Files in a private folder cannot collide.
    """

    def __init__(self, **kwargs):
        super().__init__(kernel_spec_manager=HereKernelSpecs(), **kwargs)
        self._folder = None
        if os.name != "posix":
            return
        folder = tempfile.mkdtemp(prefix="dskit-")
        connection = str(Path(folder) / "kernel.json")
        if len(os.fsencode(connection)) > _LONGEST_SOCKET_PATH:
            shutil.rmtree(folder, ignore_errors=True)  # stay with TCP
            return
        self._folder = folder
        self.transport = "ipc"
        self.connection_file = connection

    async def _async_cleanup_resources(self, restart: bool = False) -> None:
        await super()._async_cleanup_resources(restart=restart)
        if self._folder and not restart:
            shutil.rmtree(self._folder, ignore_errors=True)

    cleanup_resources = _async_cleanup_resources
