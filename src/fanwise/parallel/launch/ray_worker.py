"""The main function of a rank on a Ray cluster. It is a job of the cluster's pool.

Rank 0 opens a store, and the other ranks connect to it. Messages to the supervisor are reports of the job.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psutil
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not mark it as exported
from torch.utils._pytree import tree_map

from ...pool.current import current
from ...rpc.rendezvous.entrance_tls import address_towards
from ..comm.team import Monitor
from ..comm.torch_group import World
from ..comm.torch_team import TorchTeam, open_team
from ..context import Run
from .worker import RankTask, Send, make_monitor, run_rank


def main(train: Callable[[Run], Any], task: RankTask, towards: str) -> Any:
    """Run a rank. Return the result of the run, in main memory, in process 0, else None.

    Args:
        towards: an address in the cluster. Rank 0 listens at its own address in the same network.
    """
    job = current()  # the training function has another one

    def send(name: str, *content: Any) -> None:
        # The supervisor must know of a checkpoint before another rank can fail after it.
        (job.report if name == "writing" else job.begin_report)((name, *content))

    def ask(name: str, *content: Any) -> Any:
        """Return the answer of the launcher."""
        return (job.report((name, *content)).body or {})["answer"]

    result = run_rank(train, task, send, lambda: _join(task, towards, send, ask))
    return result if task.device.type == "cpu" else tree_map(_off_device, result)


@contextmanager
def _join(task: RankTask, towards: str, send: Send, ask: Callable[..., Any]) -> Iterator[tuple[TorchTeam, Monitor]]:
    """Connect to the other ranks during the block."""
    settings, size = task.settings, len(task.settings.devices)
    address = address_towards(towards)
    _use_interface(address)
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False) if task.rank == 0 else None
    host, port = ask("here", [address, 0 if store is None else store.port])
    with open_team(
        World(task.rank, size, lambda: store or TCPStore(host, port, size)),
        task.device,
        reduce=settings.reduce,
        backend=None if settings.backend == "shared memory" else settings.backend,
        step_timeout_s=settings.step_timeout_s,
    ) as team:
        team.limit_operations()
        yield team, make_monitor(send, partial(ask, "report"))


def _use_interface(address: str) -> None:
    """Make Gloo and NCCL use the network interface of this address, unless the environment names one."""
    for name, addresses in psutil.net_if_addrs().items():
        if address in [interface.address for interface in addresses]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _off_device(leaf: Any) -> Any:
    """Move a tensor or module to main memory, because the program may have no GPU."""
    return leaf.cpu() if isinstance(leaf, torch.Tensor | torch.nn.Module) else leaf
