"""Graphs as text and as rows, from nodes written by hand; tests/cpu captures those of a real run."""

import re
from types import SimpleNamespace

import pytest
import torch

from dskit.experiments.graphs import OPERATIONS, captured_graphs, readable

GRAPH = 140_389_480_157_776
CODE = f"""


def forward(self, primals_1, primals_2):
    gathered = torch.ops.dc.allgather_param.default(primals_1, {GRAPH}, 0, dtype = torch.float32)
    wait = torch.ops.dc.wait_allgather.default(gathered, {GRAPH}, 0);  gathered = None
    addmm = torch.ops.aten.addmm.default(primals_2, wait, wait);  primals_2 = wait = None
    total = torch.ops.aten.sum.dim_IntList(addmm, [0], True)
    release = torch.ops.dc.release_param.default(total, {GRAPH}, 0, 1);  total = release = None
    return (addmm, None)
    """

READABLE = """\
def forward(self, primals_1, primals_2):
    gathered = dc.allgather_param(primals_1, GRAPH, 0, dtype = torch.float32)
    wait = dc.wait_allgather(gathered, GRAPH, 0)
    addmm = aten.addmm(primals_2, wait, wait)
    total = aten.sum.dim_IntList(addmm, [0], True)
    release = dc.release_param(total, GRAPH, 0, 1)
    return (addmm, None)"""


def test_code_is_freed_of_what_says_nothing():
    assert readable(CODE, GRAPH) == READABLE


def test_code_of_a_traced_graph_is_freed_too():
    def f(x):
        return torch.relu(x + 1) * 2

    module = torch.fx.symbolic_trace(f)
    assert "= None" in module.code
    text = readable(module.code, GRAPH)
    assert "None" not in text
    compile(text, "<readable>", "exec")


# ---- rows -------------------------------------------------------------------------------------------------


def node(target, *args, op="call_function"):
    return SimpleNamespace(target=target, args=args, op=op)


NODES = [
    node("primals_1", op="placeholder"),
    node("dc.prefetch_params_fused.default", GRAPH, ["a", "b"], [0, 3]),
    node("dc.allgather_param.default", "a", GRAPH, 0),
    node("dc.wait_allgather.default", "a", GRAPH, 0),
    node("aten.addmm.default", "a", "b", "c"),
    node("dc.release_param.default", "a", GRAPH, 3, 1),
    node("dc.reduce_grad.default", "grad", GRAPH, 3),
    node("dc.end_backward.default", ["grad"], GRAPH, True),
    node("dc.free_tensors.default", ["a"]),
    node("dc.allgather_param.default", "a", GRAPH, 8),
    node("output", ("c",), op="output"),
]


class Engine:
    global_steps = 5

    def __init__(self):
        frozen, weight = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
        frozen.ds_id, weight.ds_id = 0, 3
        frozen.requires_grad_(False)
        parameters = {"frozen.weight": frozen, "layer.weight": weight}
        self.module = SimpleNamespace(named_parameters=parameters.items)


@pytest.fixture
def passes(monkeypatch):
    """DeepSpeed's ``run_opt_passes`` replaced; returns a function that calls it as DeepSpeed does."""
    from deepspeed.compile import backend

    def run_opt_passes(opt_passes, gm, graph_id, bwd, **_):
        gm.graph.nodes.extend(NODES)  # a pass rewrites the graph in place
        return "result"

    def call(bwd, **changes):
        gm = SimpleNamespace(code=CODE, graph=SimpleNamespace(nodes=[]))
        return backend.run_opt_passes(opt_passes=[], gm=gm, graph_id=GRAPH, bwd=bwd, **changes)

    monkeypatch.setattr(backend, "run_opt_passes", run_opt_passes)
    call.backend, call.original = backend, run_opt_passes
    return call


def test_every_graph_inside_the_block_is_recorded(passes):
    engine = Engine()
    with captured_graphs(engine) as graphs:
        assert passes(bwd=False) == "result"
        engine.global_steps = 6
        passes(bwd=True)
        assert len(graphs) == 2, "the list grows while the block runs"
    passes(bwd=False)
    assert [(g["step"], g["direction"]) for g in graphs] == [(5, "forward"), (6, "backward")]
    assert graphs[0]["code"] == READABLE
    assert passes.backend.run_opt_passes is passes.original


def test_an_error_inside_the_block_ends_the_recording(passes):
    with pytest.raises(ZeroDivisionError), captured_graphs(Engine()):
        raise ZeroDivisionError
    assert passes.backend.run_opt_passes is passes.original


def test_rows_say_what_each_node_does_to_which_parameter(passes):
    with captured_graphs(Engine()) as graphs:
        passes(bwd=False)
    rows = graphs[0]["rows"]
    assert [row["position"] for row in rows] == list(range(len(NODES)))
    assert [row["target"] for row in rows] == [node.target for node in NODES]
    assert [row["operation"] for row in rows] == [
        "placeholder", "prefetch", "gather", "wait", "call_function", "release", "reduce", "end of backward",
        "free_tensors", "gather", "output",
    ]  # fmt: skip
    ids = [[], [0, 3], [0], [0], [], [3], [3], [], [], [8], []]
    assert [row["ds_ids"] for row in rows] == ids
    names = {0: "frozen.weight", 3: "layer.weight"}
    assert [row["names"] for row in rows] == [[names[i] for i in row if i in names] for row in ids]
    assert [row["trainable"] for row in rows] == [[i == 3 for i in row if i in names] for row in ids]


def test_the_operations_are_those_of_the_installed_release():
    import importlib.util
    from pathlib import Path

    from dskit.cpu.schemas import operator_schemas

    schemas = operator_schemas(Path(importlib.util.find_spec("deepspeed").origin).parent)
    assert schemas.keys() >= OPERATIONS.keys()
    for name in OPERATIONS.keys() - {"end_backward"}:
        assert re.match(r"\w+\([^,]+,[^,]+, (int id|int\[\] ids)\b", schemas[name]), "the third argument"
