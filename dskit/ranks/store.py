"""Where the ranks of a notebook meet: torch's store on loopback, on a port that nobody had to guess.

``init_process_group`` would open the store on all addresses of the machine, on a port chosen before it is
bound. Rank 0 opens it here on loopback instead, and every rank joins it as a client, in the way in which
torchrun's own ranks do.
"""

import os
import socket

from dskit.ranks.environ import LOOPBACK

_store = None  # lives as long as rank 0


def open_store(address: str = LOOPBACK) -> int:
    """Open the store, on rank 0; returns its TCP port."""
    global _store
    from torch.distributed import TCPStore

    listener = socket.socket()
    listener.bind((address, 0))
    listener.listen()
    port = listener.getsockname()[1]
    _store = TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return port


def join_store(port: int, address: str = LOOPBACK) -> None:
    """Make ``init_process_group`` of this process meet the others at the store."""
    os.environ.update(
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
    )
    if address == LOOPBACK:
        # Or they would listen on whatever address the host name stands for.
        os.environ.update(GLOO_SOCKET_IFNAME=_loopback_interface(), NCCL_SOCKET_IFNAME=_loopback_interface())


def _loopback_interface() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return "lo" if "lo" in names else next((n for n in names if n.startswith("lo")), names[0])
