"""The variables that torchrun would set, for ranks that a notebook starts."""

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A TCP port on loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def rank_environment(rank: int, ranks: int, port: int, shared_gpu: bool = False) -> dict[str, str]:
    """torchrun's variables for one rank on this machine.

    Args:
        rank: this rank, from 0.
        ranks: the world size.
        port: TCP port of rank 0's store.
        shared_gpu: every rank uses the first visible GPU.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0" if shared_gpu else str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
    }
