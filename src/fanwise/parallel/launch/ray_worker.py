"""The main function of a rank on a Ray cluster, which is a job of the cluster's pool.

    supervisor --job--> main: the process at rank 0 opens a store, the others connect to it --> train_as_rank

Messages to the supervisor are reports of the job:

    say    "joined", "out" and "err" with text, "progress", "checkpoint" with a path     without waiting
    ask    "store" with the address of a store, or None    returns the address that rank 0 has sent
           "report" with its number and values             returns when it was made
"""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not mark it as exported
from torch.utils._pytree import tree_map

from ...base.errors import ClusterError
from ...pool.current import CurrentJob, current
from ...rpc.rendezvous.entrance_tls import address_towards
from ..comm.torch_group import World
from ..comm.torch_team import opened
from ..context import Run
from ..process_settings import run_environment
from .worker import RankTask, train_as_rank


def main(train: Callable[[Run], Any], task: RankTask, towards: str) -> tuple[Any, bool]:  # Any: the user's result
    """Run a rank. Returns its result, in main memory, and whether it is that of the run.

    Args:
        towards: an address in the cluster. Rank 0 listens at its own address on the way to it.
    """
    link = SupervisorLink(current())
    settings, device = task.settings, task.devices[0]
    _check_device(device)
    address = address_towards(towards)
    _use_interface(address)
    store, port = None, 0
    if task.rank == 0:
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        port = store.port
    host, port = link.ask("store", (address, port, os.getpid()))["address"]
    size = len(settings.devices)
    world = World(task.rank, size, lambda: store or TCPStore(host, port, size))
    backend = None if settings.backend == "shared memory" else settings.backend
    with (
        run_environment(settings.threads, device, exact=settings.reduce != "fast", settings=task.torch_settings),
        opened(
            world,
            device,
            reduce=settings.reduce,
            backend=backend,
            step_timeout_s=settings.step_timeout_s,
            monitor=link,
        ) as team,
    ):
        team.limit_exchanges()
        link.say("joined")
        result, is_first = train_as_rank(train, task, team, link)
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
    """Have Gloo and NCCL use the network interface of this address, unless the environment names one."""
    for name, addresses in psutil.net_if_addrs().items():
        if address in [interface.address for interface in addresses]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _off_device(result: Any, device: torch.device) -> Any:  # Any: the user's
    """Move tensors and modules to main memory, because the program may have no GPU."""
    if device.type == "cpu":
        return result
    return tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor | torch.nn.Module) else leaf, result)


class SupervisorLink:
    """Messages from a rank to its supervisor. Also a `comm.torch_team.Monitor`."""

    def __init__(self, job: CurrentJob) -> None:
        self._job = job

    def say(self, name: str, *content: Any) -> None:  # Any: plain values
        """Send a message. Returns at once."""
        self._job.begin_report((name, *content))

    def ask(self, name: str, *content: Any) -> Mapping[str, Any]:  # Any: plain values
        """Send a message and return its answer. Blocks until that is there."""
        return self._job.report((name, *content)).body or {}

    def report(self, number: int, values: Mapping[str, Any]) -> None:  # Any: numbers
        self.ask("report", number, dict(values))

    def checkpoint_written(self, path: str) -> None:
        self.say("checkpoint", path)

    def exchange(self, number: int) -> None: ...
    def step_ends(self) -> None: ...
    def saved(self) -> None: ...
    def set_writing(self, is_writing: bool) -> None: ...
