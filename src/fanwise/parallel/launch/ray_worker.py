"""The main function of a rank on a Ray cluster. It is a job of the cluster's pool.

Rank 0 opens a store, the other ranks connect to it, and all train. Messages to the supervisor are reports of the job:

    say    "joined", "out" and "err" with a text, "progress", "checkpoint" with a path    returns at once
    ask    "store" with host and port of the own store, and pid                           returns those of rank 0
           "report" with number and values                                                returns after the report
"""

import os
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import psutil
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not mark it as exported
from torch.utils._pytree import tree_map

from ...base.errors import ClusterError
from ...pool.current import current
from ...rpc.rendezvous.addresses import address_towards
from ..comm.team import Monitor
from ..comm.torch_group import World
from ..comm.torch_team import open_team
from ..context import Run
from ..process_settings import run_environment
from .worker import RankTask, train_as_rank


def main(train: Callable[[Run], Any], task: RankTask, towards: str) -> tuple[Any, bool]:
    """Run a rank. Return its result, in main memory, and True if this is the result of the run.

    Args:
        towards: an address in the cluster. Rank 0 listens at its own address in the same network.
    """
    job, settings, device = current(), task.settings, task.device
    _check_device(device)

    def say(name: str, *content: Any) -> None:
        job.begin_report((name, *content))

    def ask(name: str, *content: Any) -> Mapping[str, Any]:
        return job.report((name, *content)).body or {}

    address = address_towards(towards)
    _use_interface(address)
    store, port = None, 0
    if task.rank == 0:
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        port = store.port
    host, port = ask("store", (address, port, os.getpid()))["address"]
    size = len(settings.devices)
    world = World(task.rank, size, lambda: store or TCPStore(host, port, size))
    monitor = Monitor(
        report=lambda number, values: ask("report", number, dict(values)),
        checkpoint_written=partial(say, "checkpoint"),
    )
    with (
        run_environment(settings.threads, device, exact=settings.reduce != "fast", settings=task.torch_settings),
        open_team(
            world,
            device,
            reduce=settings.reduce,
            backend=None if settings.backend == "shared memory" else settings.backend,
            step_timeout_s=settings.step_timeout_s,
        ) as team,
    ):
        team.limit_operations()
        say("joined")
        result, is_first = train_as_rank(train, task, team, monitor, say)
    return _off_device(result, device) if is_first else None, is_first


def _check_device(device: torch.device) -> None:
    """Raise ClusterError if torch cannot use the GPU that the pool has leased to this process."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ClusterError(
            f"the run has leased GPU {', '.join(current().gpus)} of {socket.gethostname()}, and torch "
            f"{torch.__version__} there cannot use it (torch.cuda.is_available() is False).\n"
            f"Install a torch with CUDA that fits the driver on that node, or train on CPU devices: "
            f'devices=["cpu"] * 4.'
        )


def _use_interface(address: str) -> None:
    """Make Gloo and NCCL use the network interface of this address, unless the environment names one."""
    for name, addresses in psutil.net_if_addrs().items():
        if address in [interface.address for interface in addresses]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _off_device(result: Any, device: torch.device) -> Any:
    """Move tensors and modules to main memory, because the program may have no GPU."""
    if device.type == "cpu":
        return result
    return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor | torch.nn.Module) else leaf, result)
