"""A worker process from the inside: prepares itself, connects to the pool, runs its job, tells how it went, ends.

    forked by the warm process --> own session, dies with its parent --> dials the pool
      --> lease, environment, output files, seeds --> ready --> the user's function --> done --> end, or the next job

The forked child shares nothing with the warm process but memory: its links are closed by the fork, its signals and
its exit handlers are its own. A stop order arrives as SIGTERM, which raises `TrialStopped` wherever the function is;
never in the middle of a message. All that leaves the process goes through its one link.

Sent to the pool: `ready`, `report`, `done`; a reused worker then asks `next`, or exits if it cannot run another job.
Before it exits, a worker ends what its function left running (see `leftovers`), and sends `killed` if something
ignores SIGTERM.
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
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..base.errors import FanwiseError, NotSendableError, TrialStopped
from ..links.codec import Beside, dumps_by_value, pack_error
from ..links.hub import Hub
from ..links.link import Link
from ..links.transports.unix import dial
from . import runtime_environment
from .current import CurrentJob, enter, leave
from .functions import Function, unpack_arguments, unpack_function
from .late_imports import call_on_import
from .launching import THREAD_VARIABLES
from .leftovers import end_all, has_child_processes, running_threads
from .marks import MARK
from .processes import adopt_orphans, die_with_parent, started_s
from .seeds import seed_everything, seed_on_import
from .sources import Sources
from .specs import LINK_LOST, EndKind, Home, How, JobSpec
from .stopper import Stopper, stop_by_signal

# The kernel shall pick a worker, not the tuner, when memory runs out.
_OOM_SCORE = 500

# The pool's thread may be busy with a large message of somebody else; when the pool is gone, dialling fails at once.
_DIAL_S = 60.0


class _Ended(NamedTuple):
    """How the user's function ended."""

    kind: EndKind
    payload: bytes
    buffers: list[Beside]
    objective_s: float


def main_after_fork(
    home: Home, job: Callable[[], JobSpec], functions: dict[str, Function], sources: Sources, warm_pid: int
) -> NoReturn:
    """The life of a child that the warm process has just forked. `job`: waits for its job; EOFError: there is none."""
    code = 1
    try:
        os.setsid()
        die_with_parent(warm_pid)
        os.environ[MARK] = f"{os.environ[MARK]}/{os.getpid()}"
        atexit._clear()
        code = _main(home, job, functions, sources, "fork")
    except EOFError:
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _flush()
        os._exit(code)


def main_of_spare(home: Home, spec: JobSpec, functions: dict[str, Function], sources: Sources) -> NoReturn:
    """The rest of the life of a spare that has got its job. Not left by return: threads may still be there."""
    code = 1
    try:
        code = _main(home, lambda: spec, functions, sources, "spare")
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _flush()
        os._exit(code)


def _main(home: Home, first: Callable[[], JobSpec], functions: dict[str, Function], sources: Sources, how: How) -> int:
    """Run the first job, and when it says `reuse` what the pool sends after it. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    hub = Hub(name="worker")
    link = dial(hub, Path(home.socket), home.key, within_s=_DIAL_S)
    link.open()
    worker = _Worker(hub, link, functions, sources)
    try:
        job: JobSpec | None = first()
        while job is not None:
            fit = worker.run(job, how)
            job = link.ask("next", job.job_id) if fit and job.reuse else None
            how = "reuse"
            if job is not None and worker.is_stale():
                link.notify("declined", job.job_id)
                job = None
        return 0
    except FanwiseError:
        return LINK_LOST  # as a rule the pool is gone, and with it everybody who could be told
    finally:
        if killed := end_all():
            worker.notify_killed(killed)
        link.close()
        hub.close()


class _Worker:
    """This process between its first job and its last."""

    def __init__(self, hub: Hub, link: Link, functions: dict[str, Function], sources: Sources) -> None:
        self._hub = hub
        self._link = link
        self._functions = functions
        self._sources = sources
        self._pid = os.getpid()
        self._memory = _Memory()
        self._job_id = 0

    def run(self, spec: JobSpec, how: How) -> bool:
        """Run one job. Return whether this process can run another one."""
        self._job_id = spec.job_id
        runtime_environment.apply(spec.runtime_environment, again=how == "reuse")
        if spec.reuse:
            adopt_orphans()  # so that `has_child_processes` finds daemons, too
        _redirect(spec.output)  # first, so that an error of the GPU below is in the job's output
        _limit(spec, how)
        seed_everything(spec.seed)
        with seed_on_import(spec.seed), stop_by_signal() as stopper:
            job = CurrentJob(self._hub, self._link, spec, stopper)
            enter(job)
            self._link.notify("ready", spec.job_id, os.getpid(), started_s(os.getpid()), how)
            ended = self._call(spec, job, stopper)
            if os.getpid() != self._pid:  # a fork by user code that came back from the user's function
                _flush()
                os._exit(ended.kind != "returned")
            leave()
        _flush()
        threads = running_threads()
        self._link.notify("done", spec.job_id, *ended, threads)
        # An exception, or a stop outside of a report, may have left anything half-done. Threads and processes that are
        # still there would disturb the next job; ending only these would break what the process keeps of them.
        clean = ended.kind == "returned" or (ended.kind == "stopped" and stopper.stopped_in_report)
        if not (clean and spec.reuse) or threads or has_child_processes() or not self._memory.is_steady():
            return False
        self._sources.remember()
        return True

    def notify_killed(self, processes: tuple[str, ...]) -> None:
        """Report child processes that ignore SIGTERM and are killed when this process has exited."""
        with contextlib.suppress(FanwiseError):  # the pool is gone
            self._link.notify("killed", self._job_id, processes)

    def is_stale(self) -> bool:
        """Whether a source file that this process has imported was changed since."""
        return bool(self._sources.edited())

    def _call(self, spec: JobSpec, job: CurrentJob, stopper: Stopper) -> _Ended:
        """The user's function: how it ended, the packed result or error, and the seconds it took."""
        began_s = time.monotonic()
        try:
            try:
                function = self._function(spec)
                args, kwargs = unpack_arguments(spec.arguments)
                began_s = time.monotonic()
                job.began(began_s)
                stopper.begin()
                value = function(*args, **kwargs)
            finally:
                stopper.ignore()
                objective_s = time.monotonic() - began_s
            payload, buffers = _pack_result(value, spec)
            return _Ended("returned", payload, buffers, objective_s)
        except TrialStopped:
            return _Ended("stopped", b"", [], time.monotonic() - began_s)
        except BaseException as error:
            _print(error)
            return _Ended("exception", pack_error(error), [], objective_s)

    def _function(self, spec: JobSpec) -> Function:
        """From the warm process, or, when this process was forked before it was known, from the pool."""
        if spec.function_id not in self._functions:
            self._functions[spec.function_id] = unpack_function(self._link.ask("function", spec.job_id))
        return self._functions[spec.function_id]


def _print(error: BaseException) -> None:
    """Tell it on stderr, as an interpreter does that ends by it."""
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)  # what could not all be held must not be in the way now
    if not isinstance(error, SystemExit | KeyboardInterrupt):
        with contextlib.suppress(BaseException):  # the hook may be the user's own, and leave by sys.exit
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
    """Threads, GPUs and memory as the lease says; before any user code of this job runs."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
    for name in THREAD_VARIABLES:
        os.environ[name] = str(spec.cpus)
    if spec.gpus and spec.gpu_fraction < 1:
        os.environ.update(_gpu_share(spec.gpu_fraction))
        os.environ.update(spec.mps_variables)  # a reused process keeps those of its first job
    if how == "reuse":
        return  # the rest holds for the process: a reused one gets only jobs of the same resources
    if spec.cpus != 1:
        import threadpoolctl

        threadpoolctl.threadpool_limits(spec.cpus)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(spec.cpus)
    if spec.memory_bytes and not spec.gpus:
        import resource

        limit_bytes = _data_bytes() + spec.memory_bytes
        hard_bytes = resource.getrlimit(resource.RLIMIT_DATA)[1]  # only privileged users may raise it
        if hard_bytes != resource.RLIM_INFINITY:
            limit_bytes = min(limit_bytes, hard_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard_bytes))
    if spec.gpus and spec.gpu_fraction < 1:
        _limit_gpu_memory(spec.gpu_fraction)


def _gpu_share(fraction: float) -> dict[str, str]:
    """What JAX and TensorFlow read when they first use the GPU; else each would take most of its memory at once.

    JAX takes its part then, a little less than the job's, as its own default of 75 % is of a whole one. TensorFlow
    takes what it needs, when it does: it has no variable for a part.
    """
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 * fraction:.3f}", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def _limit_gpu_memory(fraction: float) -> None:
    """This process may have `fraction` of its GPU's memory; set when torch is there, at the latest by its import."""

    def limit(torch: Any) -> None:  # Any: the module
        if torch.backends.cuda.is_built():
            torch.cuda.set_per_process_memory_fraction(fraction)

    if "torch" in sys.modules:
        limit(sys.modules["torch"])
    else:
        call_on_import({"torch": limit})


def _redirect(output: str) -> None:
    """Standard output and error go to the job's own files, line by line, so that a crash loses nothing."""
    _flush()
    for fd, ending in ((1, ".out"), (2, ".err")):
        target = os.open(output + ending, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(target, fd)
        os.close(target)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # an earlier job may have put something else there
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # text files both, as we were started


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _statm_bytes(field: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[field]) * os.sysconf("SC_PAGE_SIZE")


def _resident_bytes() -> int:
    return _statm_bytes(1)


def _data_bytes() -> int:
    """What RLIMIT_DATA counts, and a little more (the stack)."""
    return _statm_bytes(5)


class _Memory:
    """Whether a reused process keeps its memory. Its baseline is what it holds after its first job."""

    _SLACK_BYTES = 256 << 20
    _SLACK_SHARE = 0.25

    def __init__(self) -> None:
        self._baseline: tuple[int, int] | None = None
        self._above = 0

    def is_steady(self) -> bool:
        """False once two jobs in a row ended well above the baseline, on the host or on a GPU."""
        now = (_resident_bytes(), _cuda_bytes())
        if self._baseline is None:
            self._baseline = now
        if self._is_above(now, self._baseline):
            gc.collect()
            now = (_resident_bytes(), _cuda_bytes())
        self._above = self._above + 1 if self._is_above(now, self._baseline) else 0
        return self._above < 2

    def _is_above(self, now: tuple[int, int], baseline: tuple[int, int]) -> bool:
        return any(n > b * (1 + self._SLACK_SHARE) + self._SLACK_BYTES for n, b in zip(now, baseline, strict=True))


def _cuda_bytes() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_allocated())
