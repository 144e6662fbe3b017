"""One training run under ``dskit run``; every rank writes what it left behind to FOLDER/rank-N.json.

Usage: dskit run train_and_save.py FOLDER MODE BACKEND DTYPE
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import deepspeed
import torch

from dskit.experiments.graphs import captured_graphs
from dskit.experiments.training import RunSettings, make_engine, same_bits, shards, train

folder, mode, backend, dtype = sys.argv[1:]
settings = RunSettings(mode=mode, backend=backend, dtype=dtype)
engine = make_engine(settings)
compiled = mode == "deepcompile"
before = {frozen: shards(engine, frozen=frozen) for frozen in (True, False)}
with captured_graphs(engine) if compiled else nullcontext([]) as graphs:
    rows = train(engine, settings)
kept = {frozen: same_bits(before[frozen], shards(engine, frozen=frozen)) for frozen in (True, False)}


def weights(frozen: bool) -> dict[str, list[float]]:
    """Whole parameters, gathered where they are sharded."""
    chosen = {name: p for name, p in engine.module.named_parameters() if p.requires_grad is not frozen}
    sharded = mode != "zero0"
    gathered = deepspeed.zero.GatheredParameters(list(chosen.values())) if sharded else nullcontext()
    with gathered:
        return {name: p.detach().double().flatten().tolist() for name, p in chosen.items()}


def error_of_a_reduce(ds_id: int) -> str:
    """What the runtime says when a graph of this engine reduces a gradient of that parameter."""
    from deepspeed.compile.util import get_deepcompile_handle

    graph_id = next(iter(get_deepcompile_handle().executors))
    try:
        torch.ops.dc.reduce_grad(torch.zeros(1), graph_id, ds_id)
    except RuntimeError as error:
        return str(error)
    return ""


result = {
    "rows": rows,
    "kept": {"frozen": kept[True], "trainable": kept[False]},
    "frozen": weights(frozen=True),
    "trainable": weights(frozen=False),
    "graphs": [{key: graph[key] for key in ("step", "direction", "rows", "code")} for graph in graphs],
    "errors": [error_of_a_reduce(ds_id) for ds_id in (0, 2)] if compiled else [],
}
rank = torch.distributed.get_rank()
(Path(folder) / f"rank-{rank}.json").write_text(json.dumps(result))
