"""A worker process from the inside: prepares itself, connects to the pool, runs its job, tells how it went, ends.

    forked by the warm process --> own session, dies with its parent --> dials the pool, hello
      --> seeds, threads, GPUs, output files --> ready --> the user's function --> done --> end, or the next job

The forked child shares nothing with the warm process but memory: its links are closed by the fork, its signals and
its exit handlers are its own. A stop order arrives as SIGTERM, which raises `TrialStopped` wherever the function is;
never in the middle of a message. All that leaves the process goes through its one link.
"""

import atexit
import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..base.errors import FanwiseError, NotSendableError, TrialStopped
from ..links import Hub, Link, dial
from ..links.codec import dumps_by_value, pack_error
from .current import CurrentJob, Stopper, enter, fetch_function, leave, stop_by_signal
from .functions import unpack_arguments
from .late_imports import call_on_import
from .processes import die_with_parent, started_s
from .seeds import seed_everything, seed_on_import
from .specs import Home, How, JobSpec, OutcomeKind

class _Ended(NamedTuple):
    """How the user's function ended."""

    kind: OutcomeKind
    payload: bytes
    buffers: list[Any]  # Any: bytes-like
    objective_s: float


Function = Callable[..., Any]  # Any: the user's function

# The kernel shall pick a worker, not the tuner, when memory runs out.
_OOM_SCORE = 500


def main_after_fork(home: Home, spec: JobSpec, functions: dict[str, Function], warm_pid: int) -> NoReturn:
    """The life of a child that the warm process has just forked. Never returns."""
    code = 1
    try:
        os.setsid()
        die_with_parent(warm_pid)
        atexit._clear()
        gc.enable()
        code = main(home, spec, functions, "fork")
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _flush()
        os._exit(code)


def main(home: Home, spec: JobSpec | None, functions: dict[str, Function], how: How) -> int:
    """Run `spec`, and when it says `reuse` what the pool sends after it. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    assert spec is not None, "a worker begins with a job"
    hub = Hub(name="worker")
    link = dial(hub, Path(home.socket), home.key)
    link.open()
    _limit(spec)
    memory = _Memory()
    try:
        while spec is not None:
            clean = _run(link, spec, functions[spec.function_id], how)
            if not spec.reuse:
                break
            how = "reuse"
            spec = link.ask("next", spec.job_id, clean and memory.is_steady())
            if spec is not None and spec.function_id not in functions:
                functions[spec.function_id] = fetch_function(link, spec.function_id)
        return 0
    except FanwiseError:
        return 0  # the pool is gone, and with it everybody who could be told
    finally:
        _leave()
        link.close()
        hub.close()


def _run(link: Link, spec: JobSpec, function: Function, how: How) -> bool:
    """One job. True when it ended by returning or by a stop inside report: the process is fit for another."""
    _redirect(spec.output)
    seed_everything(spec.seed)
    with seed_on_import(spec.seed), stop_by_signal() as stopper:
        job = CurrentJob(link, spec, stopper)
        enter(job)
        link.notify("ready", spec.job_id, os.getpid(), started_s(os.getpid()), how)
        ended = _call(function, spec, job, stopper)
        leave()
    _flush()
    link.notify("done", spec.job_id, *ended)
    return ended.kind == "returned" or (ended.kind == "stopped" and stopper.stopped_in_report)


def _call(function: Function, spec: JobSpec, job: CurrentJob, stopper: Stopper) -> _Ended:
    """The user's function: how it ended, the packed result or error, and the seconds it took."""
    began_s = time.monotonic()
    job.began(began_s)
    try:
        try:
            stopper.begin()
            args, kwargs = unpack_arguments(spec.arguments)
            value = function(*args, **kwargs)
        finally:
            stopper.ignore()
            objective_s = time.monotonic() - began_s
        payload, buffers = _pack_result(value, spec)
        return _Ended("returned", payload, buffers, objective_s)
    except TrialStopped:
        return _Ended("stopped", b"", [], time.monotonic() - began_s)
    except (SystemExit, KeyboardInterrupt) as error:
        return _Ended("exception", pack_error(error), [], objective_s)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return _Ended("exception", pack_error(error), [], objective_s)


def _pack_result(value: object, spec: JobSpec) -> tuple[bytes, list[Any]]:
    try:
        return dumps_by_value(value)
    except Exception as error:
        raise NotSendableError(
            f"job {spec.job_id} '{spec.name}' returned a {type(value).__name__} that cannot be sent back: {error}.\n"
            f"Return plain values, arrays, or a state_dict."
        ) from error


def _limit(spec: JobSpec) -> None:
    """Threads, GPUs and memory as the lease says; before any user code of this process runs."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(spec.cpus)
    if spec.cpus != 1:
        import threadpoolctl

        threadpoolctl.threadpool_limits(spec.cpus)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(spec.cpus)
    if spec.memory_bytes and not spec.gpus:
        import resource

        used = _resident_bytes()
        resource.setrlimit(resource.RLIMIT_DATA, (used + spec.memory_bytes, resource.RLIM_INFINITY))
    if spec.gpus and spec.gpu_fraction < 1:
        _limit_gpu_memory(spec.gpu_fraction)


def _limit_gpu_memory(fraction: float) -> None:
    """This process may have `fraction` of its GPU's memory; set when torch is there, at the latest by its import."""

    def limit(torch: Any) -> None:  # Any: the module
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
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # text files both, in a process of ours


def _leave() -> None:
    """What an interpreter does at its end, for the parts that user code may rely on."""
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"]._exit_function()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


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
        grown = any(n > b * (1 + self._SLACK_SHARE) + self._SLACK_BYTES for n, b in zip(now, self._baseline))
        if grown:
            gc.collect()
        self._above = self._above + 1 if grown else 0
        return self._above < 2


def _cuda_bytes() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_allocated())


_ = random  # seeded by seed_everything; imported here so that it is in the warm process before the fork
