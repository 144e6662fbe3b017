"""What the ZeRO-3 optimizer owns, beside what the module has: the two sides of the crash."""

GRADIENT_MAP = "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition"


def ownership(engine) -> list[dict]:
    """One row for each module parameter, in the order in which ``init_z3`` meets them.

    Args:
        engine: a DeepSpeed engine with ZeRO stage 3 and an optimizer.

    Returns:
        Rows with ds_id, name, shape, trainable, elements (of the whole parameter), shard (elements on
        this rank, padding included), owned (the optimizer's gradient map has the ds_id) and gradient
        (elements of this rank's gradient partition, 0 where there is none).
    """
    partitions = getattr(engine.optimizer, GRADIENT_MAP)
    rows = []
    for name, p in engine.module.named_parameters():
        partition = partitions.get(p.ds_id)
        rows.append(
            {
                "ds_id": p.ds_id,
                "name": name,
                "shape": tuple(p.ds_shape),
                "trainable": p.requires_grad,
                "elements": p.ds_numel,
                "shard": p.ds_tensor.numel(),
                "owned": partition is not None,
                "gradient": 0 if partition is None else partition.numel(),
            }
        )
    return rows
