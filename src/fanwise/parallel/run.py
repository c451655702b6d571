"""`run` trains a function on one or several devices. `here` returns a run in the current process.

    fanwise.run(train, devices=4)     calls train(run) in four processes
    train(fanwise.here())             trains in this process, for a debugger or a notebook cell

The result depends on seed, shards, threads and data, not on the number of devices.
"""

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch

from ..base.errors import NotSendableError, WorkerLostError
from ..base.text import counted
from ..links.codec import dumps_in_band, loads
from ..pool import Pool
from ..pool.current import current, in_job
from ..pool.seeds import seed_everything
from .checkpoint.location import StrPath, is_in_process_memory, location_of
from .comm.torch_team import join_team
from .config import DEFAULT_SHARDS, Plan, Reduce
from .context import Run
from .data.position import DataPosition
from .devices import Devices, devices_of, devices_on_hosts
from .launch.external import check_arguments, device_of, launched
from .launch.local import LocalSupervisor
from .launch.pools import pool_for
from .launch.settings import Settings, default_backend
from .launch.supervisor import Supervisor
from .process_settings import run_environment
from .progress import Display, function_name
from .validation.arguments import check_one_of, check_seconds, check_whole_number

R = TypeVar("R")

_log = logging.getLogger(__name__)
_warned: set[int] = set()  # numbers of devices for which the warning about shards was given

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
    on_loss: str = "continue",
    restarts: int = 0,
    step_timeout_s: float | None = None,
    pool: Pool | None = None,
    verify: int = 0,
    progress: bool = True,
) -> R:
    """Call `train(run)`, whose steps are divided among the devices. Blocks until it has returned.

    The result has the same bits on any number of devices if seed, shards and threads are the same. By default there
    are 4 shards and 1 thread, so 1 to 4 devices give the same bits.

    Each device has its own process, a job of a pool, in which `train` is called. With one device and no `pool`, `train`
    is called in the current process.

    Args:
        train: called with a `Run`. Pass hyperparameters with functools.partial.
        devices: number of GPUs, or of CPU devices if there is no GPU. Or names of devices of one type: `"cuda:1"`,
            `["cuda:0", "cuda:1"]`, `["cpu"] * 4`. "auto" is all GPUs of this job or machine, or one CPU device if there
            is none. On a cluster it is all GPUs, or one CPU device for each shard if they fit. GPUs are numbered as in
            nvidia-smi, or by their position in CUDA_VISIBLE_DEVICES.
        shards: number of shards of each global batch, 4 by default, or that of the checkpoint. More than 4 devices have
            one shard each by default, with a warning, because the bits differ. 1 is a plain loop. "devices" is one
            shard for each device.
        seed: determines initial weights, order, augmentation and dropout. By default that of the job in a pool, else 0.
        threads: number of threads of each device, 1 by default. It changes the bits of the result.
        reduce: "exact" adds gradients along one tree over the shards, and operators without a deterministic
            implementation raise. "fast" first adds the shards of each process, so the last bits depend on the number
            of processes.
        resume: checkpoint of `run.save` from which to continue: a file, or a URL that fsspec knows.
        on_loss: what happens if a CPU process of a run on one machine dies. "continue": the others repeat the step and
            take over its shards, so the result has the same bits. "stop": WorkerLostError is raised. On GPUs, on a
            cluster and under a launcher, a loss always ends the attempt.
        restarts: how many times the run may start again after a loss has ended an attempt. It continues from its last
            checkpoint, or from the beginning if there is none, with the same bits. On a cluster it uses the hosts that
            are left. Reports are not repeated. Not allowed under a launcher, which restarts processes itself.
        step_timeout_s: how many seconds the others wait for a process that does not reach the next operation. After
            that time it counts as lost. On one machine, the error or a warning shows its stack. Choose a time well
            above that of the longest step, evaluation, checkpoint, or work between steps. Until the first step has
            ended, the limit is ten times as long, at least a minute. Time in which a tuner decides on a report does not
            count. By default the others wait forever, and a warning shows the stack after a minute. On a cluster and
            under a launcher, the default is that of torch's process groups. Without effect if the run has one process.
        pool: pool whose jobs the processes are. By default it belongs to this library, or to the job in which this is
            called. With `Pool(ray=...)` the processes run on as few nodes of that cluster as have room.
        verify: number of batches between two consistency checks of a step. A check compares batch, optimizer settings,
            parameters and buffers between processes, and executes a shard twice. By default, only the first batches
            are compared.
        progress: show the progress on standard error. A job shows none.

    Returns:
        A copy of the result of `train` in the first process, with tensors in main memory. Under a launcher, each
        process returns its own result, and it is not copied.

    Raises:
        ValueError: a device does not exist, an argument is out of range, or the checkpoint belongs to a run with other
            arguments.
        FileNotFoundError: the file `resume` does not exist. CheckpointError: the file system of its URL refuses.
        WorkerLostError: processes were lost, the run cannot continue without them, and no restarts are left.
        NotSendableError: the result of `train` cannot be pickled.
        LeaseError: the pool, or the job, has too few CPUs or GPUs.
        The first error of `train` in any process, in its own type.
    """
    if not callable(train):
        raise TypeError(
            f"fanwise.run got a {type(train).__name__}, not a function.\n"
            f"  wrong:  fanwise.run(train(run))\n  right:  fanwise.run(train)"
        )
    check_one_of("reduce", reduce, REDUCE)
    check_one_of("on_loss", on_loss, ON_LOSS)
    if step_timeout_s is not None:
        step_timeout_s = check_seconds("step_timeout_s", step_timeout_s)
    verify = check_whole_number("verify", verify, least=0)
    restarts = check_whole_number("restarts", restarts, least=0)
    arguments = {"shards": shards, "seed": seed, "threads": threads}
    explicit_settings = frozenset(name for name, value in arguments.items() if value is not None)
    threads = 1 if threads is None else threads
    is_exact = reduce != "fast"
    if (process := launched()) is not None:
        check_arguments(process, devices, has_pool=pool is not None, restarts=restarts)
        device = device_of(process, devices)
        plan = _plan(_shards(shards, process.size, warns=process.rank == 0), threads, seed, reduce)
        with join_team(process.world, device, reduce=reduce, step_timeout_s=step_timeout_s) as team:
            team.agree_on(plan, explicit_settings)
            launched_run = Run(plan, device, team=team, explicit_settings=explicit_settings, verify=verify)
            return _train_here(train, launched_run, resume, Display(progress) if process.rank == 0 else None, is_exact)
    cluster = None if pool is None else pool._cluster_engine
    run_devices = (
        devices_of(devices)
        if cluster is None
        else devices_on_hosts(devices, cluster.capacity(), threads, shards if isinstance(shards, int) else None)
    )
    plan = _plan(_shards(shards, len(run_devices), warns=resume is None), threads, seed, reduce)
    display = Display(progress)
    if len(run_devices) == 1 and pool is None:
        local_run = Run(plan, run_devices[0], explicit_settings=explicit_settings, verify=verify)
        return _copy_result(_train_here(train, local_run, resume, display, is_exact), function_name(train))
    with closing(display):
        used_pool, names, gpu_names = pool_for(run_devices, is_named=not isinstance(devices, int | str), pool=pool)
        settings = Settings(
            devices=names,
            backend=default_backend(run_devices[0].type, len(run_devices), gpu_names),
            gpus=1 if run_devices[0].type == "cuda" else 0,
            gpu_names=gpu_names,
            shards=plan.shards,
            threads=plan.threads,
            seed=plan.seed,
            explicit_settings=explicit_settings,
            resume=None if resume is None else _path_for_others(resume),
            on_loss=on_loss,
            step_timeout_s=step_timeout_s,
            reduce=reduce,
            verify=verify,
        )

        def start(settings: Settings) -> Supervisor[Any]:
            if cluster is None:
                return LocalSupervisor(used_pool, train, settings, display)
            from .launch.ray import RaySupervisor

            return RaySupervisor(cluster, train, settings, display)

        value: R = run_attempts(start, settings, restarts)
        return value


def _path_for_others(resume: StrPath) -> str:
    location = location_of(resume, "resume")
    if is_in_process_memory(location):
        raise ValueError(
            f"resume={resume!r} is in the memory of this process, and the other processes of the run cannot read it.\n"
            f"Name a file or another URL, or set devices=1."
        )
    return os.fspath(location)


def run_attempts(start: Callable[[Settings], Supervisor[Any]], settings: Settings, restarts: int) -> Any:
    """Return the result of the first attempt that no loss ends. Each attempt continues from the last checkpoint.

    Raises:
        WorkerLostError: losses have ended `restarts + 1` attempts.
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


def _train_here(
    train: Callable[[Run], R], run: Run, resume: StrPath | None, display: Display | None, is_exact: bool
) -> R:
    with ExitStack() as stack:
        show = None
        if display is not None:
            stack.enter_context(closing(display))
            display.rank_states, show = lambda: ["running"] * run.world_size, display.show
        stack.enter_context(run_environment(run.threads, run.device, exact=is_exact))
        return run.execute(train, function_name(train), resume, show)


def _copy_result(result: R, name: str) -> R:
    """Pickle and unpickle the result, so that it is the same whether or not the function ran in another process."""
    try:
        pickled = dumps_in_band(result)
    except Exception as error:
        raise NotSendableError(
            f"{name} returned a {type(result).__name__} that cannot be sent back: {error}.\n"
            f"Return plain values, arrays, or a state_dict."
        ) from error
    copy: R = loads(pickled)
    return copy


def here(*, shards: int = DEFAULT_SHARDS, seed: int | None = None) -> Run:
    """Return a run on one CPU device in the current process: `train(fanwise.here())`.

    Seeds `random`, numpy and torch as `fanwise.run` does. The number of threads stays as it is.

    Args:
        shards: number of shards of each batch. 1 is a plain loop.
        seed: by default that of the job in a pool, else 0.
    """
    plan = _plan(shards, torch.get_num_threads(), seed)
    seed_everything(plan.seed)
    return Run(plan, torch.device("cpu"), explicit_settings=frozenset() if seed is None else frozenset(["seed"]))


def _shards(shards: int | str | None, devices: int, *, warns: bool) -> int:
    """Return the number of shards, by default one that gives the same bits on 1 to 4 devices."""
    if shards == "devices":
        return devices
    if isinstance(shards, str):
        raise ValueError(f"shards={shards!r}: give a number, or 'devices' for one shard on each device")
    if shards is not None:
        return check_whole_number("shards", shards, least=1)
    if warns and devices > DEFAULT_SHARDS and devices not in _warned:
        _warned.add(devices)
        _log.warning(
            "fanwise.run on %d devices cuts each batch into %d shards, but on 1 to %d devices into %d, so the results "
            "differ in their bits.\nSet shards=%d in all runs for the same bits on any number of devices, or "
            "shards='devices' if equal bits do not matter.",
            devices,
            devices,
            DEFAULT_SHARDS,
            DEFAULT_SHARDS,
            devices,
        )
    return max(DEFAULT_SHARDS, devices)


def _plan(shards: int, threads: int, seed: int | None, reduce: Reduce | None = None) -> Plan:
    if seed is None:
        seed = current().seed if in_job() else 0
    seed = check_whole_number("seed", seed, least=0)
    if seed >= 2**64:
        raise ValueError(f"seed must be below 2**64, got {seed}")
    shards, threads = check_whole_number("shards", shards, least=1), check_whole_number("threads", threads, least=1)
    return Plan(shards, threads, DataPosition(seed), reduce)
