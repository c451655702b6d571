"""A rank: what runs in each process of a run on a cluster, as a job of its pool.

    supervisor --job--> main: links to all others -> Run with this team -> train(run) -> result, of the first only

Processes of one node have Unix sockets between them, those of different nodes TLS, with a secret that the supervisor
has drawn for this run and that has come with the job, on the pool's own links. Loads `ssl`.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ...base.errors import ClusterError
from ...pool.current import current, enter
from ...pool.seeds import seed_everything
from ...rpc.rendezvous.addresses import Rendezvous
from ...rpc.rendezvous.entrance_tls import TlsMeeting
from ..config import Plan
from ..context import Run
from ..data.position import DataPosition
from ..hosts.meeting import PeerInfo, met_by
from ..hosts.team import HostsTeam, entered
from ..process_settings.environment import run_environment
from ..process_settings.torch_settings import TorchSettings
from ..progress import RemoteScreen, RunSnapshot
from ..supervisor.settings import Settings
from ..supervisor.speaking import Forwarding, ReportingJob
from .talking import Talking


@dataclass(frozen=True, slots=True)
class Orders:
    """What a rank is told when it starts.

    Attributes:
        settings: of the run. rank: its number. size: how many there are. start: how often this was begun before.
        secret: of the links. towards: an address of the cluster; a rank listens on the side of its host from where
            that is reached.
        drawn: seconds until the progress is first shown, and between two times. name: of the training function.
        switches: what the program has set for its own process.
    """

    settings: Settings
    rank: int
    size: int
    start: int
    secret: str
    towards: str
    drawn: tuple[float, float]
    name: str
    switches: TorchSettings


def main(train: Callable[[Run], Any], orders: Orders) -> Any:  # Any: what the user's function returns
    """The life of a rank."""
    talking = Talking(current())
    settings = orders.settings
    device = torch.device(settings.devices[orders.rank][0])
    _check_device(device)
    where = Rendezvous(f"tcp://{orders.towards}:0", "cluster", orders.towards)
    meeting = TlsMeeting(where, orders.secret, ports=os.environ.get("FANWISE_PORTS", 0))
    info = PeerInfo(orders.rank, orders.size, orders.start, "", "", os.getpid())

    def tell(values: Mapping[str, Any]) -> None:  # Any: numbers
        talking.ask("report", dict(values))

    with (
        run_environment(settings.threads, device, exact=settings.reduce != "fast", settings=orders.switches),
        entered(
            met_by(talking.who_is_where, info, meeting, goes_on=settings.on_loss != "stop"),
            reduce=settings.reduce,
            step_timeout_s=settings.step_timeout_s,
            tell=tell,
            device=device,
        ) as team,
    ):
        talking.say("linked")
        result = _train(train, orders, team, talking)
        is_first = team.place == 0
    return _off_device(result, device) if talking.ask("over", is_first)["value"] else None


def _check_device(device: torch.device) -> None:
    """Raises ClusterError where torch cannot use the GPU that the pool has leased to this process."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ClusterError(
            f"the run has leased GPU {', '.join(current().gpus)} of {socket.gethostname()}, and torch "
            f"{torch.__version__} there cannot use it (torch.cuda.is_available() is False).\n"
            f"Install a torch with CUDA that fits the driver on that node, or train on CPU devices: "
            f'devices=["cpu"] * 4.'
        )


def _off_device(result: Any, device: torch.device) -> Any:  # Any: of the user's
    """As it is sent to the program, which may have no GPU: tensors and modules are in main memory."""
    if device.type == "cpu":
        return result
    return tree_map(lambda each: each.cpu() if isinstance(each, torch.Tensor | torch.nn.Module) else each, result)


def _train(
    train: Callable[[Run], Any], orders: Orders, team: HostsTeam, talking: Talking
) -> Any:  # Any: as the function returns
    settings = orders.settings
    seed_everything(settings.seed)
    run = Run(
        Plan(settings.shards, settings.threads, DataPosition(settings.seed), settings.reduce),
        tuple(map(torch.device, settings.devices[orders.rank])),
        team=team,
        fixed=settings.fixed,
        verify=settings.verify,
        spare_cpus=settings.spare_cpus,
    )
    before, out, err = current(), sys.stdout, sys.stderr
    enter(ReportingJob(before, team))
    sys.stdout, sys.stderr = Forwarding(out, "out", team, talking), Forwarding(err, "err", team, talking)

    def show(snapshot: RunSnapshot) -> None:
        if team.place == 0:
            talking.say("progress", snapshot)

    try:
        if settings.resume is not None:
            run.restore(settings.resume)  # what it says goes to the program
        first_s, every_s = orders.drawn
        with (
            run.show_progress(RemoteScreen(show, first_s=first_s, every_s=every_s), orders.name),
            run.writer,
            run.training(),
        ):
            return train(run)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = out, err
        enter(before)
