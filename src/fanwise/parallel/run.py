"""`run` trains a function on one or several devices. `here` makes a run of the current process.

    fanwise.run(train, devices=4)     calls train(run) in four processes
    train(fanwise.here())             trains in this process as it is, for a debugger or a notebook cell

The result depends on seed, shards, threads and data, not on the number of devices or processes.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from ..base.errors import WorkerLostError
from ..base.text import counted
from ..pool import Pool
from ..pool.current import current, in_job
from ..pool.devices import usable_cpus
from ..pool.leases import Resources
from ..pool.seeds import seed_everything
from .checkpoint.location import StrPath, is_in_process_memory, location_of
from .comm.torch_team import joined
from .config import DEFAULT_SHARDS, Plan, Reduce, default_notice, default_shards
from .context import Run
from .data.position import DataPosition
from .devices import Devices, devices_of, devices_on_hosts
from .launch.external import check_fits, device_of, launched
from .launch.local import Supervisor
from .launch.pools import lease_for
from .launch.settings import Settings, default_backend
from .process_settings import run_environment
from .progress import NoScreen, RankStatus, Screen, StatusScreen, function_name, open_screen
from .step.tree import cut
from .user_collectives import copy_of_result
from .validation.arguments import check_name, check_seconds, check_whole_number

if TYPE_CHECKING:
    from ..pool.cluster.engine import ClusterEngine
    from .launch.ray import RaySupervisor

R = TypeVar("R")

_log = logging.getLogger(__name__)
_warned: set[int] = set()  # numbers of devices for which the warning was given

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
    restarts: int = 0,
    step_timeout_s: float | None = None,
    pool: Pool | None = None,
    verify: int = 0,
    progress: bool = True,
) -> R:
    """Call `train(run)` so that its steps are spread over devices. Blocks until it returns.

    The result has the same bits on any number of devices if seed, shards and threads are the same. By default there
    are 4 shards and 1 thread, so 1 to 4 devices give the same bits.

    Args:
        train: is called with a `Run`. Pass hyperparameters by functools.partial.
        devices: their number: GPUs if there are any, else CPU devices. Or names of one kind, as `"cuda:1"`,
            `["cuda:0", "cuda:1"]`, `["cpu"] * 4`. "auto" is all GPUs of this job or machine, else one CPU device; on a
            cluster all its GPUs, else as many CPU devices as it has room for and there are shards. GPUs are numbered
            as in nvidia-smi, or by their position in CUDA_VISIBLE_DEVICES.
        shards: parts of each global batch, 4 by default, or those of the checkpoint. More than 4 devices have one
            shard each by default, and then other bits than fewer devices, with a warning: give the largest number of
            devices that will ever train the model. 1 is a plain loop, the fastest on one device. "devices" is one
            shard for each device. Batch normalization is by shard.
        seed: of initial weights, order, augmentation and dropout; by default that of the job in a pool, else 0.
        threads: of each device, 1 by default. Another number gives other bits.
        reduce: "exact" adds gradients along one tree over the shards, and operators without a deterministic
            implementation raise. "fast" first adds the shards of each process, so the last bits depend on the number
            of processes.
        resume: a checkpoint of `run.save` from which to continue: a file, or any URL that fsspec knows.
        processes: number of processes for the devices, by default one for each. With 1, as with one device, `train`
            runs in the current process, and the devices take turns. Else it runs in each of the processes, which are
            jobs of a pool. Each of several GPUs has its own process, in which it is `run.device`, cuda:0.
        on_loss: what CPU processes of one machine do if one of them dies: "continue" repeats the step with the
            others, which take over its shards, so the result has the same bits; "stop" raises WorkerLostError. On
            GPUs, on a cluster and under a launcher, a loss always ends the attempt.
        restarts: how many times the run may start again after an attempt has ended by a loss. It continues from the
            last checkpoint that `run.save` has written, or else from the beginning, with the same bits, on a cluster
            with the hosts that are left. Reports that were made are not repeated. Not under a launcher, which
            restarts processes itself.
        step_timeout_s: how long the others wait for a process that does not come to the next exchange, because it is
            stopped, stuck in a file system, or in a deadlock. Then it is named with its stack and treated as lost.
            Choose a time well above the longest step, evaluation, and work between steps. Until its first step is
            done a process has ten times as long, at least a minute. Time in which a tuner decides on a report does
            not count. By default the others wait forever, and a warning names the process after a minute; on a
            cluster and under a launcher, they wait as long as torch's process groups do: 30 minutes with Gloo, 10
            with NCCL. It has no effect on a run with one process.
        pool: the pool of the processes, also for one device. By default it belongs to this library, or to the job in
            which this is called. With `Pool(ray=...)` the processes are on the nodes of that cluster, on as few as
            have room.
        verify: after this many batches of a step, again and again, compare batch, optimizer settings, parameters and
            buffers between processes, and execute a shard twice. An error names the first difference. Each time costs
            about one step. By default only the first batches are compared.
        progress: show a line on standard error: in a terminal it is redrawn, in a log it comes every 10 s, in a job
            there is none. Pass False if `train` draws a bar itself, as tqdm does.

    Returns:
        A copy of what `train` returns in the first process, also on one device, with tensors in main memory. In the
        processes of a launcher, the object itself.

    Raises:
        ValueError: no such devices, shards, threads, seed or reduction; or the checkpoint does not fit to them, or has
            another `reduce`.
        FileNotFoundError: there is no file `resume`. CheckpointError: it is at a URL whose file system refuses.
        WorkerLostError: processes were lost, the run cannot continue without them, and there are no restarts left.
        NotSendableError: what `train` returns cannot be pickled.
        LeaseError: the pool, or the job, has too few CPUs or GPUs.
        The first error of `train` in any process, in its own type.
    """
    if not callable(train):
        raise TypeError(
            f"fanwise.run got a {type(train).__name__}, not a function.\n"
            f"  wrong:  fanwise.run(train(run))\n  right:  fanwise.run(train)"
        )
    check_name("reduce", reduce, REDUCE)
    check_name("on_loss", on_loss, ON_LOSS)
    if step_timeout_s is not None:
        step_timeout_s = check_seconds("step_timeout_s", step_timeout_s)
    verify = check_whole_number("verify", verify, least=0)
    restarts = check_whole_number("restarts", restarts, least=0)
    arguments = {"shards": shards, "seed": seed, "threads": threads}
    fixed = frozenset(name for name, value in arguments.items() if value is not None)
    if (process := launched()) is not None:
        check_fits(process, devices, processes, has_pool=pool is not None, restarts=restarts)
        device = device_of(process, devices)
        plan = _plan(
            _shards(shards, process.size, warns=process.rank == 0), 1 if threads is None else threads, seed, reduce
        )
        with joined(process.world, device, reduce=reduce, step_timeout_s=step_timeout_s) as team:
            team.agree_on(plan, fixed)
            run = Run(plan, (device,), team=team, fixed=fixed, verify=verify)
            notice = "" if resume is not None else _notice(plan, process.size, device, fixed)
            return _train_here(train, run, resume, progress, notice, exact=reduce != "fast")
    cluster = None if pool is None else pool.cluster
    run_devices = (
        devices_of(devices)
        if cluster is None
        else devices_on_hosts(devices, cluster.capacity(), threads or 1, shards if isinstance(shards, int) else None)
    )
    num_shards = _shards(shards, len(run_devices), warns=resume is None)
    plan = _plan(num_shards, 1 if threads is None else threads, seed, reduce)
    parts = _spread(run_devices, processes, are_named=cluster is None)
    # The values of a checkpoint were chosen when its run began.
    notice = "" if resume is not None else _notice(plan, len(run_devices), run_devices[0], fixed)
    if len(parts) == 1 and pool is None:
        run = Run(plan, run_devices, fixed=fixed, verify=verify)
        value = _train_here(train, run, resume, progress, notice, exact=reduce != "fast")
        return copy_of_result(value, function_name(train))
    lease = lease_for(run_devices, is_named=not isinstance(devices, int | str), pool=pool)
    settings = Settings(
        devices=tuple(lease.names[part.start : part.stop] for part in parts),
        backend=default_backend(run_devices[0].type, len(parts), lease.gpu_names),
        gpus=lease.gpus,
        gpu_names=lease.gpu_names,
        shards=plan.shards,
        threads=plan.threads,
        seed=plan.seed,
        fixed=fixed,
        resume=None if resume is None else _path_for_others(resume),
        on_loss=on_loss,
        step_timeout_s=step_timeout_s,
        reduce=reduce,
        progress=progress,
        verify=verify,
        notice=notice,
    )
    result: R = run_attempts(lambda settings: _supervisor(lease.pool, train, settings), settings, restarts)
    return result


def _path_for_others(resume: StrPath) -> str:
    location = location_of(resume, "resume")
    if is_in_process_memory(location):
        raise ValueError(
            f"resume={resume!r} is in the memory of this process, and the other processes of the run cannot read it.\n"
            f"Name a file or another URL, or say processes=1."
        )
    return os.fspath(location)


def _supervisor(pool: Pool, train: Callable[[Run], Any], settings: Settings) -> "Supervisor | RaySupervisor":
    if pool.cluster is None:
        return Supervisor(pool, train, settings)
    return ray_supervisor(pool.cluster, train, settings)


def ray_supervisor(engine: "ClusterEngine", train: Callable[[Run], Any], settings: Settings) -> "RaySupervisor":
    """Return an attempt on a cluster. A restart uses the hosts that are left."""
    from .launch.ray import RaySupervisor

    room = engine.capacity().fits(Resources(cpus=settings.threads, gpus=settings.gpus))
    if settings.is_restart and 0 < room < len(settings.devices):
        settings = replace(settings, devices=settings.devices[:room])
    return RaySupervisor(engine, train, settings)


def run_attempts(
    start: "Callable[[Settings], Supervisor | RaySupervisor]", settings: Settings, restarts: int
) -> Any:  # Any: the user's result
    """Make attempts until one is not ended by a loss. Each continues from the last checkpoint of those before.

    Raises:
        WorkerLostError: processes were lost more than `restarts` times.
    """
    for left in range(restarts, -1, -1):
        attempt = start(settings)
        try:
            return attempt.run()
        except WorkerLostError as lost:
            if not attempt.is_lost or not restarts:
                raise
            checkpoint = attempt.checkpoint or settings.resume
            where = "from the beginning" if checkpoint is None else f"from the checkpoint {checkpoint}"
            if not left:
                raise WorkerLostError(
                    f"{lost.message}\nrestarts={restarts} are used up. The run could start again {where}."
                ) from lost
            _log.warning("%s\nThe run starts again %s; %s left.", lost.message, where, counted(left - 1, "restart"))
            settings = replace(settings, resume=checkpoint, reports_made=attempt.reports_made, is_restart=True)
    raise AssertionError("the last attempt returns or raises")


def _notice(plan: Plan, devices: int, device: torch.device, fixed: frozenset[str]) -> str:
    return default_notice(devices, on_cpu=device.type == "cpu", shards=plan.shards, given=fixed, cpus=usable_cpus())


def _spread(devices: Sequence[torch.device], processes: int | None, *, are_named: bool = True) -> tuple[range, ...]:
    """Return the devices of each process. `are_named`: the user can name a GPU, which is not so on a cluster."""
    count = len(devices) if processes is None else check_whole_number("processes", processes, least=1)
    if devices[0].type == "cuda" and count < len(devices):
        one = repr(str(devices[0])) if are_named else "1"
        raise ValueError(
            f"processes={processes} for {len(devices)} GPUs: each GPU of a run has a process of its own.\n"
            f"Leave processes= out, or give one GPU: devices={one}, shards={len(devices)}."
        )
    return cut(len(devices), min(len(devices), count))


def _train_here(
    train: Callable[[Run], R], run: Run, resume: StrPath | None, progress: bool, notice: str, *, exact: bool
) -> R:
    with run_environment(run.threads, run.device, exact=exact):
        seed_everything(run.seed)
        if resume is not None:
            run.restore(resume)
        screen = _screen(run, progress, notice) if run.rank == 0 else NoScreen()
        with run.show_progress(screen, function_name(train)), run.writer, run.training():
            return train(run)


def _screen(run: Run, progress: bool, notice: str) -> Screen:
    """Return a screen that also writes the status for the board. Of other processes only the number is known."""
    devices = tuple(map(str, run.devices))

    def ranks() -> list[RankStatus]:
        own = run.rank
        return [RankStatus(r, os.getpid() if r == own else 0, devices, "running") for r in range(run.world_size)]

    return StatusScreen(open_screen(progress, notice=notice), ranks)


def here(*, shards: int = DEFAULT_SHARDS, seed: int | None = None) -> Run:
    """Return a run on one CPU device of this process as it is: `train(fanwise.here())`.

    Seeds `random`, numpy and torch as `fanwise.run` does. The number of threads stays as it is.

    Args:
        shards: parts of each batch; 1 is a plain loop.
        seed: by default that of the job in a pool, else 0.
    """
    plan = _plan(shards, torch.get_num_threads(), seed)
    seed_everything(plan.seed)
    fixed = frozenset() if seed is None else frozenset(["seed"])
    return Run(plan, devices_of("cpu"), fixed=fixed)


def _shards(shards: int | str | None, devices: int, *, warns: bool) -> int:
    """Return the number of shards, by default one that gives the same bits on 1 to 4 devices."""
    if shards == "devices":
        return devices
    if isinstance(shards, str):
        raise ValueError(f"shards={shards!r}: give a number, or 'devices' for one shard on each device")
    if shards is not None:
        return check_whole_number("shards", shards, least=1)
    default = default_shards(devices)
    if warns and default > DEFAULT_SHARDS and default not in _warned:
        _warned.add(default)
        _log.warning(
            "fanwise.run on %d devices cuts each batch into %d shards, but on 1 to %d devices into %d, so the results "
            "differ in their bits.\nSet shards=%d in all runs for the same bits on any number of devices, or "
            "shards='devices' if equal bits do not matter.",
            devices,
            default,
            DEFAULT_SHARDS,
            DEFAULT_SHARDS,
            default,
        )
    return default


def _plan(shards: int, threads: int, seed: int | None, reduce: Reduce | None = None) -> Plan:
    if seed is None:
        seed = current().seed if in_job() else 0
    seed = check_whole_number("seed", seed, least=0)
    if seed >= 2**64:
        raise ValueError(f"seed must be below 2**64, got {seed}")
    shards, threads = check_whole_number("shards", shards, least=1), check_whole_number("threads", threads, least=1)
    return Plan(shards, threads, DataPosition(seed), reduce)
