"""The worker process: connects to the pool, prepares itself, runs its job, reports the outcome and exits.

A forked child shares only memory with the warm process: the fork closes its links, and it has its own signal and exit
handlers. A stop request arrives as SIGTERM (see `current`).

Messages to the pool: `ready`, `report`, `done`. A reused worker then sends `next`, or exits if it cannot run another
job. Before it exits, a worker ends everything that its function left running (see `leftovers`), and sends `killed` if a
process ignores SIGTERM.
"""

import atexit
import contextlib
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..base.errors import FanwiseError, NotSendableError, TrialStopped
from ..links.codec import Beside, dumps_by_value, pack_error
from ..links.hub import Hub
from ..links.link import Link
from ..links.process_state import stat_of
from . import runtime_environment
from .current import CurrentJob, StopSignal, enter, leave, stop_by_signal
from .functions import Function, unpack_arguments, unpack_function
from .late_imports import call_on_import
from .leftovers import end_all, has_child_processes, running_threads
from .modules import Sources
from .processes import TAG, adopt_orphans, die_with_parent
from .seeds import seed_everything, seed_on_import
from .specs import LINK_LOST, EndKind, How, JobSpec

# Makes the kernel's OOM killer prefer workers to the tuner.
_OOM_SCORE = 500

# A reused process is replaced if it has grown by more than this.
_SLACK_BYTES = 256 << 20
_SLACK_SHARE = 0.25

# The pool's thread may be busy with a large message. If the pool is gone, dialing fails at once.
_DIAL_S = 60.0


class _Ended(NamedTuple):
    kind: EndKind
    payload: bytes
    buffers: list[Beside]
    objective_s: float


@dataclass(frozen=True, slots=True)
class Inherited:
    """State of a warm process that a worker forked from it has, too. `dial(hub)` connects to the pool."""

    dial: Callable[..., Link]
    functions: dict[str, Function]
    sources: Sources


def main_after_fork(inherited: Inherited, receive_job: Callable[[], JobSpec], warm_pid: int) -> NoReturn:
    """Run a worker in a child that the warm process has just forked. `receive_job` blocks, or raises EOFError."""

    def main() -> int:
        os.setsid()
        die_with_parent(warm_pid)
        os.environ[TAG] = f"{os.environ[TAG]}/{os.getpid()}"
        atexit._clear()
        return _run_jobs(inherited, receive_job, "fork")

    _exit_after(main)


def main_of_spare(inherited: Inherited, spec: JobSpec) -> NoReturn:
    """Run a worker in a spare that got its job. Exits without returning, because other threads may be running."""
    _exit_after(lambda: _run_jobs(inherited, lambda: spec, "spare"))


def _exit_after(main: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        code = main()
    except EOFError:  # there will be no job
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _flush()
        os._exit(code)


def _run_jobs(inherited: Inherited, receive_job: Callable[[], JobSpec], how: How) -> int:
    """Run the first job and, with `reuse`, further jobs of the pool. Return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    hub = Hub(name="worker")
    link = inherited.dial(hub, within_s=_DIAL_S)
    link.open()
    worker = _Worker(link, inherited)
    try:
        job: JobSpec | None = receive_job()
        while job is not None:
            can_continue = worker.run(job, how)
            job = link.ask("next", job.job_id) if can_continue and job.reuse else None
            how = "reuse"
            if job is not None and inherited.sources.edited():
                link.close("its modules are outdated")  # the pool starts the job in another process
                job = None
        return 0
    except FanwiseError:
        return LINK_LOST  # usually the pool is gone
    finally:
        if killed := end_all():
            with contextlib.suppress(FanwiseError):  # the pool is gone
                link.notify("killed", worker.job_id, killed)
        link.close()
        hub.close()


class _Worker:
    def __init__(self, link: Link, inherited: Inherited) -> None:
        self._link = link
        self._functions = inherited.functions
        self._sources = inherited.sources
        self._pid = os.getpid()
        self._first_bytes: tuple[int, int] | None = None
        self.job_id = 0

    def run(self, spec: JobSpec, how: How) -> bool:
        """Run one job. Return whether this process can run another one."""
        self.job_id = spec.job_id
        runtime_environment.apply(spec.runtime_environment, force=how == "reuse")
        if spec.reuse:
            adopt_orphans()  # so that `has_child_processes` finds daemons, too
        _redirect(spec.output)  # first, so that GPU errors of the next lines are in the job's output
        _limit(spec, how)
        seed_everything(spec.seed)
        with seed_on_import(spec.seed), stop_by_signal() as stop_signal:
            job = CurrentJob(self._link, spec, stop_signal)
            enter(job)
            self._link.notify("ready", spec.job_id, os.getpid(), stat_of(os.getpid()).started_s, how)
            ended = self._call(spec, job, stop_signal)
            if os.getpid() != self._pid:  # a process forked by user code, which returned from the user's function
                _flush()
                os._exit(ended.kind != "returned")
            leave()
        _flush()
        threads = running_threads()
        self._link.notify("done", spec.job_id, *ended, threads)
        # After an exception, or a stop outside of a report, state may be inconsistent. Leftover threads and processes
        # would disturb the next job, and the process may depend on them.
        is_clean = ended.kind == "returned" or (ended.kind == "stopped" and stop_signal.stopped_in_report)
        if not (is_clean and spec.reuse) or threads or has_child_processes() or self._has_grown():
            return False
        self._sources.remember()
        return True

    def _has_grown(self) -> bool:
        """Return whether the memory on the host or on a GPU is well above that after the first job."""
        used = _memory_bytes()
        if self._first_bytes is None:
            self._first_bytes = used
        if _is_above(used, self._first_bytes):
            gc.collect()
            used = _memory_bytes()
        return _is_above(used, self._first_bytes)

    def _call(self, spec: JobSpec, job: CurrentJob, stop_signal: StopSignal) -> _Ended:
        began_s = time.monotonic()
        try:
            try:
                if spec.function_id not in self._functions:  # forked before the warm process had it
                    self._functions[spec.function_id] = unpack_function(self._link.ask("function", spec.job_id))
                function = self._functions[spec.function_id]
                args, kwargs = unpack_arguments(spec.arguments)
                began_s = job._began_s = time.monotonic()
                stop_signal.begin()
                value = function(*args, **kwargs)
            finally:
                stop_signal.ignore()
                objective_s = time.monotonic() - began_s
            payload, buffers = _pack_result(value, spec)
            return _Ended("returned", payload, buffers, objective_s)
        except TrialStopped:
            return _Ended("stopped", b"", [], time.monotonic() - began_s)
        except BaseException as error:
            _print(error)
            return _Ended("exception", pack_error(error), [], objective_s)


def _print(error: BaseException) -> None:
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)  # frees the memory that the frames refer to
    if not isinstance(error, SystemExit | KeyboardInterrupt):
        with contextlib.suppress(BaseException):  # the user's hook may call sys.exit
            sys.excepthook(type(error), error, error.__traceback__)


def _pack_result(value: object, spec: JobSpec) -> tuple[bytes, list[Beside]]:
    try:
        payload, buffers = dumps_by_value(value)
    except Exception as error:
        raise NotSendableError(
            f"job {spec.job_id} '{spec.name}' returned a {type(value).__name__} that cannot be sent back: {error}.\n"
            f"Return plain values, arrays, or a state_dict."
        ) from error
    return payload, [Beside(buffer) for buffer in buffers]


def _limit(spec: JobSpec, how: How) -> None:
    """Limit threads, GPUs and memory to the lease, before any user code of the job runs."""
    lease = spec.lease
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(share.visible for share in lease.gpus)
    for name in runtime_environment.THREAD_VARIABLES:
        os.environ[name] = str(lease.cpus)
    if lease.shares_gpu:
        # These keep JAX and TensorFlow from allocating most of the GPU's memory on first use. TensorFlow has no
        # variable for a part and allocates on demand.
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 * lease.gpus[0].fraction:.3f}"
        os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        os.environ.update(spec.mps_variables)  # a reused process keeps those of its first job
    if how == "reuse":
        return  # the other limits are those of the process, which runs only jobs of the same resources
    if lease.cpus != 1:
        import threadpoolctl

        threadpoolctl.threadpool_limits(lease.cpus)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(lease.cpus)
    if lease.memory_bytes and not lease.gpus:
        import resource

        limit_bytes = _statm_bytes(5) + lease.memory_bytes  # what RLIMIT_DATA limits, and the stack
        hard_bytes = resource.getrlimit(resource.RLIMIT_DATA)[1]  # only privileged users may raise it
        if hard_bytes != resource.RLIM_INFINITY:
            limit_bytes = min(limit_bytes, hard_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard_bytes))
    if lease.shares_gpu:
        _limit_gpu_memory(lease.gpus[0].fraction)


def _limit_gpu_memory(fraction: float) -> None:
    """Limit torch to a fraction of the GPU's memory, now or at its import."""

    def limit(torch: Any) -> None:
        if torch.backends.cuda.is_built():
            torch.cuda.set_per_process_memory_fraction(fraction)

    if "torch" in sys.modules:
        limit(sys.modules["torch"])
    else:
        call_on_import({"torch": limit})


def _redirect(output: str) -> None:
    """Redirect standard output and error to the job's files, line by line, so that a crash loses nothing."""
    _flush()
    write = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for fd, path, flags in ((0, os.devnull, os.O_RDONLY), (1, f"{output}.out", write), (2, f"{output}.err", write)):
        target = os.open(path, flags | os.O_CLOEXEC, 0o600)
        os.dup2(target, fd)
        os.close(target)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # an earlier job may have replaced them
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _statm_bytes(field: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[field]) * os.sysconf("SC_PAGE_SIZE")


def _memory_bytes() -> tuple[int, int]:
    torch = sys.modules.get("torch")
    cuda_bytes = 0
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        cuda_bytes = int(torch.cuda.memory_allocated())
    return _statm_bytes(1), cuda_bytes


def _is_above(used: tuple[int, int], before: tuple[int, int]) -> bool:
    return any(n > b * (1 + _SLACK_SHARE) + _SLACK_BYTES for n, b in zip(used, before, strict=True))
