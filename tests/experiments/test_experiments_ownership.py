"""What the optimizer owns, from an engine made by hand."""

from types import SimpleNamespace

import torch

from dskit.experiments.ownership import GRADIENT_MAP, ownership


def parameter(ds_id, shape, shard, trainable):
    """A parameter as ZeRO-3 leaves it: empty, with its shape and its shard beside it."""
    p = torch.nn.Parameter(torch.empty(0), requires_grad=trainable)
    p.ds_id, p.ds_shape, p.ds_numel = ds_id, torch.Size(shape), torch.Size(shape).numel()
    p.ds_tensor = torch.zeros(shard)
    return p


def engine(partitions, **parameters):
    optimizer = SimpleNamespace(**{GRADIENT_MAP: partitions})
    return SimpleNamespace(optimizer=optimizer, module=SimpleNamespace(named_parameters=parameters.items))


def test_one_row_for_each_parameter_in_the_modules_order():
    rows = ownership(
        engine(
            {2: torch.zeros(6), 5: torch.zeros(2)},
            frozen=parameter(0, (3, 3), 5, trainable=False),
            weight=parameter(5, (4,), 2, trainable=True),
            left_out=parameter(3, (2,), 1, trainable=True),
            frozen_but_owned=parameter(2, (3, 4), 6, trainable=False),
        )
    )
    columns = ("ds_id", "name", "shape", "trainable", "elements", "shard", "owned", "gradient")
    assert [tuple(row.values()) for row in rows] == [
        (0, "frozen", (3, 3), False, 9, 5, False, 0),
        (5, "weight", (4,), True, 4, 2, True, 2),
        (3, "left_out", (2,), True, 2, 1, False, 0),
        (2, "frozen_but_owned", (3, 4), False, 12, 6, True, 6),
    ]
    assert all(tuple(row) == columns for row in rows)


def test_an_empty_partition_is_owned_all_the_same():
    (row,) = ownership(engine({0: torch.zeros(0)}, empty=parameter(0, (0,), 0, trainable=True)))
    assert row["owned"] is True and row["gradient"] == 0


def test_rows_hold_plain_values_that_travel_between_processes():
    (row,) = ownership(engine({}, frozen=parameter(0, (2, 2), 2, trainable=False)))
    assert type(row["shape"]) is tuple
    assert {type(value) for value in row.values()} <= {int, str, tuple, bool}


def test_the_map_has_the_name_that_the_installed_init_z3_reads():
    import importlib.util
    from pathlib import Path

    root = Path(importlib.util.find_spec("deepspeed").origin).parent
    assert f"optimizer.{GRADIENT_MAP}[" in (root / "compile" / "init_z3.py").read_text(encoding="utf-8")
