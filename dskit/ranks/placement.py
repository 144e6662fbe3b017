"""Where rank processes run: a GPU each, one GPU shared, or the CPU.

Nothing here imports torch: the notebook's kernel stays small, and a process that chose a placement has
touched no GPU.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from dskit.errors import DskitError

DEVICES = ("auto", "cuda", "cuda-shared", "cpu")

# The first NCCL that lets several ranks use one GPU.
NCCL_SHARING = (2, 30)


@dataclass(frozen=True)
class Placement:
    """Where ranks run.

    Attributes:
        device: "cuda" (a GPU each), "cuda-shared" (all ranks on the first GPU) or "cpu".
        reason: why, in a sentence for the user.
        environment: what the ranks' environment needs for it.
    """

    device: str
    reason: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def accelerator(self) -> str:
        """Name of DeepSpeed's accelerator: "cuda" or "cpu"."""
        return "cpu" if self.device == "cpu" else "cuda"


def choose(device: str, ranks: int) -> Placement:
    """Choose where ``ranks`` processes run.

    Args:
        device: one of ``DEVICES``; "auto" takes the first that works of a GPU each, one GPU shared, CPU.
        ranks: number of rank processes, at least 1.

    Raises:
        DskitError: an unknown device, a bad number of ranks, or a placement that this machine cannot give.
    """
    if device not in DEVICES:
        raise DskitError(
            "The ranks were not started: unknown device.",
            f"device is {device!r}.",
            f"Choose one of {', '.join(DEVICES)}.",
        )
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise DskitError(
            "The ranks were not started: there must be at least one.",
            f"The number of ranks is {ranks!r}.",
            "Give a whole number from 1 on; the course uses 2.",
        )
    gpus, why_none = visible_gpus()
    if device == "cpu":
        return Placement("cpu", "The CPU was asked for", _cpu_environment())
    if gpus >= ranks and device != "cuda-shared":
        return Placement("cuda", f"A GPU for each rank ({gpus} visible)")
    sharing_problem = why_none or _sharing_problem()
    if device == "cuda":
        raise DskitError(
            f"{ranks} ranks were to get a GPU each.",
            f"{gpus} {'GPU is' if gpus == 1 else 'GPUs are'} visible"
            + (f": {why_none}." if why_none else "."),
            "Use fewer ranks, device cuda-shared (ranks share one GPU), or device cpu.",
        )
    if not sharing_problem:
        return Placement(
            "cuda-shared",
            f"All ranks share one GPU ({gpus} visible); timings are not comparable",
            _sharing_environment(),
        )
    if device == "cuda-shared":
        raise DskitError(
            f"{ranks} ranks were to share one GPU.", f"{sharing_problem}.", "Use device cpu, or mend that."
        )
    return Placement("cpu", f"No GPU: {sharing_problem}", _cpu_environment())


def visible_gpus() -> tuple[int, str]:
    """Number of GPUs that ranks could use, and why there is none."""
    if not torch_has_cuda():
        return 0, "the installed torch is a CPU build"
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return 0, "CUDA_VISIBLE_DEVICES is empty"
    if shutil.which("nvidia-smi") is None:
        return 0, "no NVIDIA driver was found (nvidia-smi is not on the PATH)"
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    found = len(re.findall(r"^GPU \d+:", listing.stdout, re.MULTILINE))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        found = min(found, len([c for c in chosen.split(",") if c.strip() not in ("", "-1")]))
    return found, "" if found else "the driver lists no GPU"


def torch_has_cuda() -> bool:
    """Whether the installed torch was built for CUDA, read from its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    found = re.search(r"^cuda\b[^=]*=\s*(.+)$", version.read_text(encoding="utf-8"), re.MULTILINE)
    return bool(found) and found[1].strip() != "None"


def _sharing_problem() -> str:
    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if tuple(int(part) for part in version.split(".")[:2]) >= NCCL_SHARING:
            return ""
        return f"ranks can share a GPU from NCCL 2.30 on, and {package} is {version}"
    return "ranks can share a GPU from NCCL 2.30 on, and no NCCL package is installed"


def _sharing_environment() -> dict[str, str]:
    return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "CUDA_VISIBLE_DEVICES": _first_gpu()}


def _first_gpu() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def _cpu_environment() -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return threads | {
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        # Inductor would start a pool of compile processes in every rank, each with torch in memory.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
