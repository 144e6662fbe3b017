"""The FX graphs that DeepCompile made, as rows that a notebook can show."""

import contextlib
import functools
import re

OPERATIONS = {
    "allgather_param": "gather",
    "wait_allgather": "wait",
    "prefetch_params_fused": "prefetch",
    "release_param": "release",
    "reduce_grad": "reduce",
    "end_backward": "end of backward",
}


@contextlib.contextmanager
def captured_graphs(engine):
    """Record every graph that DeepCompile's passes finish inside the block.

    Args:
        engine: the engine whose parameters the graphs gather, for their names.

    Yields:
        A list that grows: one dict for each graph, with ``step`` (the engine's global step), ``direction``
        ("forward" or "backward"), ``code`` (the graph's Python source, see ``readable``) and ``rows`` (its
        nodes in order: position, operation, ds_ids, names, trainable, target).
    """
    from deepspeed.compile import backend

    run_opt_passes = backend.run_opt_passes
    graphs: list[dict] = []
    parameters = {p.ds_id: (name, p.requires_grad) for name, p in engine.module.named_parameters()}

    @functools.wraps(run_opt_passes)
    def recording(*args, **kwargs):
        result = run_opt_passes(*args, **kwargs)
        module = kwargs["gm"]
        graphs.append({
            "step": engine.global_steps,
            "direction": "backward" if kwargs["bwd"] else "forward",
            "code": readable(module.code, kwargs["graph_id"]),
            "rows": [_row(i, node, parameters) for i, node in enumerate(module.graph.nodes)],
        })  # fmt: skip
        return result

    backend.run_opt_passes = recording
    try:
        yield graphs
    finally:
        backend.run_opt_passes = run_opt_passes


def readable(code: str, graph_id: int) -> str:
    """A graph's source without what says nothing to a reader: freed names, the graph's id in memory."""
    lines = [re.sub(r";\s+(?:\w+ = )+None$", "", line) for line in code.strip().splitlines()]
    text = "\n".join(lines).replace("torch.ops.", "").replace(str(graph_id), "GRAPH")
    return re.sub(r"\.default(?=\()", "", text)


def _row(position: int, node, parameters: dict[int, tuple[str, bool]]) -> dict:
    name = str(node.target)
    operator = name.removeprefix("dc.").partition(".")[0] if name.startswith("dc.") else ""
    ds_ids = _ds_ids(operator, node)
    known = [parameters[i] for i in ds_ids if i in parameters]
    return {
        "position": position,
        "operation": OPERATIONS.get(operator, operator or node.op),
        "ds_ids": ds_ids,
        "names": [n for n, _ in known],
        "trainable": [t for _, t in known],
        "target": name,
    }  # fmt: skip


def _ds_ids(operator: str, node) -> list[int]:
    """Parameters that a node is about: its third argument, as the schemas have it."""
    if operator not in OPERATIONS or operator == "end_backward":
        return []
    third = node.args[2]
    return list(third) if isinstance(third, (list, tuple)) else [third]
