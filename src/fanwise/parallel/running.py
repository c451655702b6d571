"""`run` and `here`: a training function on several devices, or in the program as it stands.

    fanwise.run(train, devices=4)     train(run), with threads and random states of its own; both are put back after
    train(fanwise.here())             here as it stands, for a debugger or a notebook cell

Several devices are several processes, each of which calls the function, or take turns in this one. The result is the
same: it depends on seed, shards, threads and data, not on the number of devices or processes.
"""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from ..links.shared_secret import read_secret
from ..pool import Pool
from ..pool.current import current, in_job
from ..pool.devices import usable_cpus
from ..pool.seeds import seed_everything
from .checkpoint.location import StrPath, is_in_process_memory, location_of
from .checks.checking import check_name, seconds, whole_number
from .config import DEFAULT_SHARDS, Plan, Reduce, default_notice, default_shards
from .context import Run
from .data.loader import spare_cpus
from .data.position import DataPosition
from .devices import Devices, devices_of, devices_on_hosts
from .hangs.watchdog import watched
from .process_settings.environment import run_environment
from .progress import NoScreen, Screen, function_name, open_screen
from .ranks import copy_of_result
from .run_status import RankStatus, StatusScreen
from .shards import cut
from .supervisor.gpus import places_for
from .supervisor.settings import Settings
from .supervisor.supervisor import Supervisor
from .teams.team import Alone
from .torch_distributed.launcher import Launched, check_fits, device_of, launched
from .torch_distributed.team import TorchDistributedTeam, entered

if TYPE_CHECKING:
    from .cluster.supervisor import ClusterSupervisor
    from .hosts.team import HostsTeam

R = TypeVar("R")

_log = logging.getLogger(__name__)
_warned: set[int] = set()  # numbers of devices, once each

ON_LOSS = ("continue", "stop")
REDUCE = ("exact", "fast")


def run(
    train: Callable[[Run], R],
    *,
    devices: Devices = "auto",
    shards: int | Literal["devices"] | None = None,
    seed: int | None = None,
    threads: int | None = None,
    reduce: Reduce = "exact",
    resume: StrPath | None = None,
    processes: int | None = None,
    on_loss: str = "continue",
    step_timeout_s: float | None = None,
    pool: Pool | None = None,
    verify: int = 0,
    progress: bool = True,
) -> R:
    """Call `train(run)` so that its steps are spread over devices. Blocks until it returns.

    With the same seed, shards and threads the result has the same bits on any number of devices. By default there are
    4 shards and 1 thread, so 1 to 4 devices give the same bits with nothing else said; for more devices say shards=.

    Args:
        train: gets a `Run`; its hyperparameters by functools.partial.
        devices: how many: GPUs where there are any, else CPU devices. Or names of one kind, as `"cuda:1"`,
            `["cuda:0", "cuda:1"]`, `["cpu"] * 4`. "auto" is all GPUs of this job or machine, else one CPU device. On a
            cluster it is all its GPUs, else as many CPU devices as there are shards and places.
            Numbers of GPUs are those of nvidia-smi, or places in CUDA_VISIBLE_DEVICES.
        shards: logical shards of each global batch; by default 4, or those of the checkpoint. More than 4 devices
            have one each by default, and then other bits than fewer devices; a warning says so. Say as many as the
            most devices that shall ever train the model. 1 is the plain loop, the fastest on one device; "devices" is
            one for each device, whatever their number. Batch normalisation is by shard.
        seed: of initial weights, order, augmentation and dropout; by default the job's in a pool, else 0.
        threads: of each device, 1 by default. More threads give other bits, as other shards do.
        reduce: "exact" adds gradients along one tree over the shards, and operators that torch knows to be not
            deterministic raise. "fast" first adds the shards of each process, and the last bits then depend on the
            number of processes.
        resume: a checkpoint of `run.save` to go on from: a file, or any URL that fsspec knows.
        processes: that the devices are spread over; by default one for each. With 1, as with one device,
            everything runs here, and devices take turns. Else `train` runs in each of them, warm jobs of a pool.
            Each of several GPUs has a process of its own, in which it is `run.device`, cuda:0.
        on_loss: when a process dies, "continue" with the others, which take over its shards, or "stop". The step in
            which it died is made again from its beginning, so the result has the same bits. Processes of a launcher
            continue on CPUs if they hold a secret (FANWISE_SECRET); otherwise a loss ends them.
        step_timeout_s: how long the others wait for a process that does not come to the next exchange, because it is
            stopped, stuck in a file system, or in a deadlock. Then it is named with its stack and, as `on_loss` says,
            killed as one that died, or the run ends. By default they wait for ever, and a warning names
            it after a minute. Choose it well above the longest step, evaluation, and what `train` does between steps;
            until its first step is done a process has ten times as long, and at least a minute. In the processes of
            a launcher, each waits this long for the others. Then all raise, or, on CPUs with a secret, continue without
            it. With one process, as on one device, a warning names where it is, and it is waited for. Time in which a
            tuner decides on a report does not count.
        pool: whose jobs the processes are; by default one of this library's own, or that of the job that this is. With
            `Pool(ray=...)` they are on the nodes of that cluster, on as few as have room, each with a GPU of its own or
            on CPUs; a node that is lost costs the step.
        verify: every so many batches of a step the processes compare batch, settings of the optimizer, parameters and
            buffers, and a shard is executed twice; what differs first is named in an error. For looking for an
            error: it costs about a step each time. By default only the first batches are compared.
        progress: show a line on standard error: in a terminal one that rich redraws, in a log one every 10 s, none in a
            job. False if `train` draws a bar itself, as tqdm does.

    Returns:
        A copy of what `train` returns, of the first of several processes, also on one device: tensors in main memory,
        generators, locks and open files not at all. In the processes of a launcher, the object itself.

    Raises:
        ValueError: no such devices, shards, threads, seed or reduction; or the checkpoint does not fit to them, or has
            another `reduce`.
        FileNotFoundError: there is no file `resume`. CheckpointError: it is at a URL whose file system refuses.
        WorkerLostError: processes died, and the run cannot go on without them.
        NotSendableError: what `train` returns cannot be pickled.
        LeaseError: the pool, or the job, has not as many CPUs as devices times threads, or not as many GPUs.
        What `train` raises, in its own type; of several processes, the error of the one that failed first.
    """
    if not callable(train):
        raise TypeError(
            f"fanwise.run got a {type(train).__name__}, not a function.\n"
            f"  wrong:  fanwise.run(train(run))\n  right:  fanwise.run(train)"
        )
    check_name("reduce", reduce, REDUCE)
    check_name("on_loss", on_loss, ON_LOSS)
    if step_timeout_s is not None:
        step_timeout_s = seconds("step_timeout_s", step_timeout_s)
    verify = whole_number("verify", verify, least=0)
    given = {"shards": shards, "seed": seed, "threads": threads}
    fixed = frozenset(name for name, value in given.items() if value is not None)
    if (others := launched()) is not None:
        check_fits(others, devices, processes, has_pool=pool is not None)
        own = device_of(others, devices)
        made_of = _shards(shards, others.size, warns=others.rank == 0)
        plan = _plan(made_of, 1 if threads is None else threads, seed, reduce)
        with _entered(others, own, reduce, on_loss, step_timeout_s) as team:
            team.agree_on(plan, fixed)
            spare = spare_cpus(plan.threads)
            made = Run(plan, (own,), team=team, fixed=fixed, verify=verify, spare_cpus=spare)
            line = "" if resume is not None else _notice(plan, others.size, own, fixed)

            def screen_of_first() -> Screen:
                return _published(open_screen(progress, notice=line), made) if team.place == 0 else NoScreen()

            return _train_here(train, made, resume, screen_of_first, exact=reduce != "fast")
    cluster = None if pool is None else pool.cluster
    found = (
        devices_of(devices)
        if cluster is None
        else devices_on_hosts(devices, cluster.capacity(), threads or 1, shards if isinstance(shards, int) else None)
    )
    made_of = _shards(shards, len(found), warns=resume is None)
    plan = _plan(made_of, 1 if threads is None else threads, seed, reduce)
    spread = _spread(found, processes, are_named=cluster is None)
    # A checkpoint has its own numbers, which were chosen when its run began.
    line = "" if resume is not None else _notice(plan, len(found), found[0], fixed)
    if len(spread) > 1 or cluster is not None:
        places = places_for(found, is_named=not isinstance(devices, int | str), pool=pool)
        settings = Settings(
            devices=tuple(places.names[part.start : part.stop] for part in spread),
            gpus=places.gpus,
            called=places.called,
            shards=plan.shards,
            threads=plan.threads,
            seed=plan.seed,
            fixed=fixed,
            resume=None if resume is None else _seen_by_all(resume),
            on_loss=on_loss,
            step_timeout_s=step_timeout_s,
            reduce=reduce,
            progress=progress,
            verify=verify,
            notice=line,
            spare_cpus=0 if pool is not None and not in_job() else spare_cpus(plan.threads, len(spread)),
        )
        result: R = _supervisor(places.pool, train, settings).run()
        return result
    alone = Alone()
    spare = spare_cpus(plan.threads)
    made = Run(plan, found, team=alone, fixed=fixed, verify=verify, spare_cpus=spare)
    with watched(alone, step_timeout_s):

        def screen() -> Screen:
            return _published(open_screen(progress, notice=line), made)

        result = _train_here(train, made, resume, screen, exact=reduce != "fast")
    return copy_of_result(result, function_name(train))


def _seen_by_all(resume: StrPath) -> str:
    """Where the checkpoint is, for other processes."""
    place = location_of(resume, "resume")
    if is_in_process_memory(place):
        raise ValueError(
            f"resume={resume!r} is in the memory of this process, and the run has others, which do not see it.\n"
            f"Name a file or another URL, or say processes=1."
        )
    return os.fspath(place)


def _published(screen: Screen, made: Run) -> StatusScreen:
    """Also for the board. Of other processes of a launcher no more is known than that they are there."""
    devices = tuple(map(str, made.devices))

    def ranks() -> list[RankStatus]:
        me = made.rank
        return [
            RankStatus(rank, os.getpid() if rank == me else 0, devices, "running") for rank in range(made.world_size)
        ]

    return StatusScreen(screen, ranks)


def _supervisor(pool: Pool, train: Callable[[Run], Any], settings: Settings) -> "Supervisor | ClusterSupervisor":
    """Of processes on this machine, or on the hosts of a cluster."""
    if (cluster := pool.cluster) is None:
        return Supervisor(pool, train, settings)
    from .cluster.supervisor import ClusterSupervisor

    return ClusterSupervisor(cluster, train, settings)


def _entered(
    others: Launched, device: torch.device, reduce: Reduce, on_loss: str, step_timeout_s: float | None
) -> "AbstractContextManager[TorchDistributedTeam | HostsTeam]":
    """The processes of the launcher: over links of ours where they hold a secret, else over torch.distributed."""
    if others.place is None or device.type != "cpu" or read_secret(os.environ) is None:
        return entered(others, device, reduce=reduce, step_timeout_s=step_timeout_s)
    from .hosts.meeting import met
    from .hosts.team import entered as linked

    return linked(met(others.place, goes_on=on_loss != "stop"), reduce=reduce, step_timeout_s=step_timeout_s)


def _notice(plan: Plan, devices: int, device: torch.device, said: frozenset[str]) -> str:
    return default_notice(devices, on_cpu=device.type == "cpu", shards=plan.shards, given=said, cpus=usable_cpus())


def _spread(devices: Sequence[torch.device], processes: int | None, *, are_named: bool = True) -> tuple[range, ...]:
    """The devices of each process. `are_named`: they are of this machine, where a name says which; not of a cluster."""
    count = len(devices) if processes is None else whole_number("processes", processes, least=1)
    if devices[0].type == "cuda" and count < len(devices):
        one = repr(str(devices[0])) if are_named else "1"
        raise ValueError(
            f"processes={processes} for {len(devices)} GPUs: each GPU of a run has a process of its own.\n"
            f"Leave processes= out, or give one GPU: devices={one}, shards={len(devices)}."
        )
    return cut(len(devices), min(len(devices), count))


def _train_here(
    train: Callable[[Run], R], made: Run, resume: StrPath | None, screen: Callable[[], Screen], *, exact: bool
) -> R:
    with run_environment(made.threads, made.device, exact=exact):
        seed_everything(made.seed)
        if resume is not None:
            made.restore(resume)
        with made.show_progress(screen(), function_name(train)), made.writer, made.training():
            return train(made)


def here(*, shards: int = DEFAULT_SHARDS, seed: int | None = None) -> Run:
    """A run on one CPU device of this process, as it stands: `train(fanwise.here())`.

    Seeds `random`, numpy and torch as `fanwise.run` does, and leaves the number of threads as it is.

    Args:
        shards: logical shards of each batch, by default as many as `fanwise.run` has; 1 is the plain loop.
        seed: by default the job's in a pool, else 0.
    """
    plan = _plan(shards, torch.get_num_threads(), seed)
    seed_everything(plan.seed)
    fixed = frozenset() if seed is None else frozenset(["seed"])
    return Run(plan, devices_of("cpu"), fixed=fixed, spare_cpus=spare_cpus(plan.threads))


def _shards(asked: int | str | None, devices: int, *, warns: bool) -> int:
    """How many: as asked for, else such that the number of devices makes no difference, as far as that goes."""
    if asked == "devices":
        return devices
    if isinstance(asked, str):
        raise ValueError(f"shards={asked!r}: give a number, or 'devices' for one shard on each device")
    if asked is not None:
        return whole_number("shards", asked, least=1)
    made = default_shards(devices)
    if warns and made > DEFAULT_SHARDS and made not in _warned:
        _warned.add(made)
        _log.warning(
            "fanwise.run on %d devices cuts each batch into %d shards, and on 1 to %d devices into %d: other bits.\n"
            "Say shards=%d, here and there, for the same bits on any number of devices; shards='devices' if they do "
            "not matter.",
            devices,
            made,
            DEFAULT_SHARDS,
            DEFAULT_SHARDS,
            made,
        )
    return made


def _plan(shards: int, threads: int, seed: int | None, reduce: Reduce | None = None) -> Plan:
    if seed is None:
        seed = current().seed if in_job() else 0
    seed = whole_number("seed", seed, least=0)
    if seed >= 2**64:
        raise ValueError(f"seed must be below 2**64, got {seed}")
    shards, threads = whole_number("shards", shards, least=1), whole_number("threads", threads, least=1)
    return Plan(shards, threads, DataPosition(seed), reduce)
