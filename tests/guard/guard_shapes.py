"""Small sources of the shapes that the releases have, in our own words, and packages made of them."""

from pathlib import Path
from types import SimpleNamespace

MAP = "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition"

UNGUARDED = f'''\
"""Stands in for deepspeed/compile/init_z3.py."""


class torch:
    Tensor = list  # an empty buffer is []


class DeepSpeedZeRoOffload:
    pass


def init_z3(engine, backend, compile_config, compile_kwargs, schedule=None):
    optimizer = engine.optimizer
    use_opt = not isinstance(optimizer, DeepSpeedZeRoOffload)

    for p in engine.module.parameters():
        grad_buffer = torch.Tensor()
        if use_opt:
            grad_buffer = optimizer.{MAP}[p.ds_id]

        backend.append((p.ds_id, grad_buffer))

    if use_opt:

        def set_grad_buffer():
            return [
                optimizer.{MAP}[param.ds_id]
                if param.requires_grad else None for param in optimizer.owned
            ]

    return backend
'''
GUARDED = UNGUARDED.replace(
    "        if use_opt:\n            grad", "        if use_opt and p.requires_grad:\n            grad"
)
UNCONDITIONAL = UNGUARDED.replace("        if use_opt:\n            grad", "        grad")
LOOKUP_LINE = 19
SHAPES = {"unguarded": UNGUARDED, "guarded": GUARDED}

REDUCE_PASS = """\
def add_gather_and_reduce(graph_id, graph, param_manager, param_nodes_bw, param_name_to_grad):
    for name in param_manager.param_names:
        if param_name_to_grad[name] is None:
            continue
        add_reduce(graph_id, graph, param_name_to_grad[name], name, param_manager.ds_ids[name])
"""
REDUCE_PASS_WITHOUT_SKIP = REDUCE_PASS.replace(
    "        if param_name_to_grad[name] is None:\n            continue\n", ""
)

ENGINE = """\
from deepspeed.compile.init_z3 import init_z3


def compile_backend(*arguments):
    return init_z3(*arguments)
"""


def write_package(root: Path, init_z3: str | None, reduce_pass: str = REDUCE_PASS, release="0.19.5") -> Path:
    """A package `deepspeed` in the folder `root`; without an init_z3 it has no folder compile/ either."""
    files = {
        "__init__.py": "",
        "git_version_info_installed.py": f"version='{release}'\ngit_hash='unknown'\n",
        "runtime/__init__.py": "",
    }
    if init_z3 is not None:
        files |= {"compile/__init__.py": "", "compile/init_z3.py": init_z3, "runtime/engine.py": ENGINE}
        files |= {"compile/passes/__init__.py": "", "compile/passes/zero3_compile.py": reduce_pass}
    for name, text in files.items():
        path = root / "deepspeed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return root / "deepspeed"


def buffers(init_z3, *trainable: bool, owned: tuple[int, ...] | None = None) -> list:
    """Run a small init_z3 on parameters 0, 1, ...; the optimizer owns the trainable ones, or `owned`."""
    parameters = [SimpleNamespace(ds_id=i, requires_grad=grad) for i, grad in enumerate(trainable)]
    owned = owned if owned is not None else [p.ds_id for p in parameters if p.requires_grad]
    optimizer = SimpleNamespace(**{MAP: {ds_id: f"partition {ds_id}" for ds_id in owned}})
    module = SimpleNamespace(parameters=lambda: iter(parameters))
    return init_z3(SimpleNamespace(optimizer=optimizer, module=module), [], None, None)
