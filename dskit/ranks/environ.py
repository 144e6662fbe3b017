"""The variables that torchrun would set, for ranks that a notebook starts."""

LOOPBACK = "127.0.0.1"


def rank_environment(rank: int, ranks: int, shared_gpu: bool = False) -> dict[str, str]:
    """torchrun's variables for one rank on this machine, but for the store's address.

    Args:
        rank: this rank, from 0.
        ranks: the world size.
        shared_gpu: every rank uses the first visible GPU.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0" if shared_gpu else str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
