"""A rank: what runs in each process of a run, as a job of a pool.

    supervisor --job--> main: memory, pipe --> Run with this team --> train(run) --> result, from the first only

What it prints goes to the user's terminal from the first process, and from the others into the output that the pool
keeps. A report of the job is a report of the run: made once, and its decision is that of all processes.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...base.errors import TrialStopped
from ...links.codec import pack_error
from ...pool.current import current, enter
from ...pool.seeds import seed_everything
from ...tensor.with_torch import random  # noqa: F401  # once, before the fork; each rank's first batch would load it
from ..config import Plan
from ..context import Run
from ..data.position import DataPosition
from ..hangs.stack_dump import install_stack_dump
from ..process_settings.environment import run_environment
from ..process_settings.torch_settings import TorchSettings
from ..progress import RemoteScreen, RunSnapshot
from ..shared_memory.control_block import ControlBlock
from ..shared_memory.memory import SharedMemory
from ..shared_memory.pipes import MessageSender
from ..shared_memory.team import Over, SharedMemoryTeam
from .settings import Settings, all_reduce_of
from .speaking import Forwarding, ReportingJob

# A part of torch's profiler is loaded by the first step of any optimizer: once, before the fork, and not by each rank.
with torch.autograd.profiler.record_function("load"):
    pass


@dataclass(frozen=True, slots=True)
class Orders:
    """What a rank is told when it starts.

    Attributes:
        settings: of the run. memory, pipe, stacks: what it opens. rank: its number.
        devices: names, of this process.
        switches: what the program has set for its own process.
        drawn: seconds until the progress is first shown, and between two times. name: of the training function.
    """

    settings: Settings
    memory: str
    pipe: str
    stacks: str
    rank: int
    devices: tuple[str, ...]
    drawn: tuple[float, float]
    name: str
    switches: TorchSettings


def main(train: Callable[[Run], Any], orders: Orders) -> Any:  # Any: what the user's function returns
    """The life of a rank."""
    sender = MessageSender(orders.pipe)
    install_stack_dump(orders.stacks)  # before anybody knows where to send the signal, which would end the process
    sender.say("here", os.getpid(), current().gpus)
    try:
        device, exact = torch.device(orders.devices[0]), orders.settings.reduce != "fast"
        with run_environment(orders.settings.threads, device, exact=exact, settings=orders.switches):
            return _train(train, orders, sender)
    except Over:
        return None
    except TrialStopped:
        sender.say("stopped")
        return None
    except BaseException as error:
        sender.say("failed", time.monotonic(), pack_error(error))
        return None


def _train(train: Callable[[Run], Any], orders: Orders, sender: MessageSender) -> Any:  # Any: as the function returns
    settings = orders.settings
    memory = SharedMemory.open(orders.memory, all_reduce_of(settings))
    seed_everything(settings.seed)
    control = ControlBlock(memory)
    member = SharedMemoryTeam(
        memory,
        control,
        orders.rank,
        len(settings.devices),
        sender,
        reduce=settings.reduce,
    )
    plan = Plan(settings.shards, settings.threads, DataPosition(settings.seed), settings.reduce)
    run = Run(
        plan,
        tuple(map(torch.device, orders.devices)),
        team=member,
        fixed=settings.fixed,
        names=lambda: [name for rank in member.members for name in settings.devices[rank]],
        verify=settings.verify,
        spare_cpus=settings.spare_cpus,
    )
    if settings.resume is not None:
        run.restore(settings.resume)
    enter(ReportingJob(current(), member))
    sys.stdout, sys.stderr = (
        Forwarding(sys.stdout, "out", member, sender),
        Forwarding(sys.stderr, "err", member, sender),
    )

    def show(snapshot: RunSnapshot) -> None:
        if member.place == 0:
            sender.say("progress", snapshot)

    try:
        first_s, every_s = orders.drawn
        with (
            run.show_progress(RemoteScreen(show, first_s=first_s, every_s=every_s), orders.name),
            run.writer,
            run.training(),
        ):
            result = train(run)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    if not member.done():
        member.wait_for_end()
    sender.say("returns")
    return result
