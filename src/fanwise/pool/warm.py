"""The warm process and the spare: interpreters that have imported the modules of a function before a job begins.

A warm process is a fork of the supervisor. It imports the modules that functions use and forks a child for each job.
Before each fork it checks that this is safe: one thread, no CUDA context, and no change of an imported source file. If
not, it refuses, and the pool runs the job in a spare or starts a new warm process.

While jobs run, one child is forked ahead of the next job. It connects to the pool and waits at a pipe, so that the next
job waits for no fork. It is dropped when this process imports something more.

A spare is the same interpreter, but it does not fork: it becomes the worker itself, for one job or for several reused.

Requests of the pool: `prepare(function_id, function, modules, environment) -> Prepared`, `forget(function_id)`,
`start(JobSpec) -> pid | Refusal`, and `signal(pid, number)` (warm only). Notifications: `exited(pid, status)`.
"""

import atexit
import contextlib
import faulthandler
import fcntl
import gc
import importlib
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

from ..base.huge_pages import HUGE_PAGE_BYTES, collapse
from ..links.codec import pack_error
from ..links.hub import Hub, Timer
from ..links.link import Link, Request
from ..links.process_state import stat_of
from ..links.transports.unix import dial
from . import runtime_environment, worker
from .functions import unpack_function
from .late_imports import call_on_import
from .modules import Sources
from .processes import TAG, Children, adopt_orphans, die_with_parent
from .specs import JobSpec, Prepared, Refusal, RuntimeEnvironment

Kind = Literal["warm", "spare"]

# Imported after the first jobs were forked: workers and many objectives use these, but not at the start.
_IMPORTED_LATER = ("numpy", "threadpoolctl")

# Modules that a library imports on its first real use, which takes over a second. Imported when a job has done so.
# torch: the first optimizer imports torch._dynamo.
_IMPORTED_ON_USE = {"torch": "torch._dynamo"}

# Work that makes later forks cheaper is done after this number of forks, or earlier if no job waits for it.
_MAX_FORKS_BEFORE_SETTLING = 10

# Delay between the start of a job and the fork ahead of the next one, so that it does not slow down the start.
_FORK_AHEAD_DELAY_S = 0.03
# A child forked ahead is kept for this time when no job runs.
_IDLE_S = 0.1
# Delay of the garbage collection after the last job of a pool. It takes 0.1 s with torch.
_COLLECT_DELAY_S = 1.0


def main_after_fork(config: dict[str, Any], tag: str, supervisor_pid: int) -> NoReturn:
    """Run a warm process or a spare in a child that the supervisor has just forked.

    Args:
        config: folder and key of the pool, kind and number of this process.
    """
    code = 1
    try:
        os.setsid()
        die_with_parent(supervisor_pid)
        os.environ[TAG] = tag
        _main(config)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):  # of the user's modules
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _main(config: dict[str, Any]) -> None:
    path = Path(config["folder"], f"{config['kind']}-{config['number']}.log")
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable()  # inherited by jobs: a crash in native code writes the Python stack to stderr
    adopt_orphans()
    runtime_environment.remember_base()
    warm = _Warm(config)
    spec = warm.serve()
    if spec is not None:
        worker.main_of_spare(warm.inherited, spec)


class _Warm:
    def __init__(self, config: dict[str, Any]) -> None:
        dial_pool = partial(dial, path=Path(config["folder"], "hub"), key=bytes.fromhex(config["key"]))
        self.inherited = worker.Inherited(dial_pool, {}, Sources())
        self._kind: Kind = config["kind"]
        self._hub = Hub(name=self._kind)
        self._link: Link = dial_pool(self._hub)
        self._link.handler = self._serve
        self._link.on_ended(lambda link, ending: self._end())
        self._link.open()
        self._children = Children(self._hub, self._on_exit)
        self._over = False
        self._spare_job: JobSpec | None = None
        self._unsafe: Refusal | None = None
        self._idle: tuple[int, int] | None = None  # pid and pipe of the child that was forked ahead
        self._timer: Timer | None = None  # of the child that is forked ahead
        self._is_collection_due = False
        self._num_forks = 0
        self._is_settled = False
        self._used = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # see `_watch_use`
        self._hub.watch(self._used, self._on_use)
        self._link.notify("hello", self._kind, config["number"])

    def serve(self) -> JobSpec | None:
        """Serve until the pool closes the link. A spare returns with its job."""
        self._hub.run(until=lambda: self._over)
        self._link.close()
        self._hub.close()
        return self._spare_job

    def _end(self) -> None:
        self._over = True
        if self._spare_job is None:
            for pid in self._children.pids():
                self._children.signal(pid, signal.SIGKILL)

    @property
    def _has_jobs(self) -> bool:
        idle = None if self._idle is None else self._idle[0]
        return any(pid != idle for pid in self._children.pids())

    def _on_exit(self, pid: int, status: int) -> None:
        if self._idle is not None and not self._has_jobs:
            self._set_timer(_IDLE_S, self._drop_idle)
        with contextlib.suppress(Exception):  # the pool is gone, and `_end` follows
            self._link.notify("exited", pid, status)

    def _serve(self, request: Request) -> None:
        match request.method:
            case "prepare":
                request.answer(self._prepare(*request.args))
            case "forget":
                self.inherited.functions.pop(request.args[0], None)
                if not self._has_jobs:
                    self._drop_idle()
                if not self._is_collection_due:
                    self._is_collection_due = True
                    self._hub.call_at(self._hub.now_s() + _COLLECT_DELAY_S, self._collect)
            case "signal":
                self._children.signal(*request.args)
            case method:
                assert method == "start", method
                self._start(request, request.args[0])

    def _prepare(
        self, function_id: str, packed: bytes, modules: list[str], environment: RuntimeEnvironment
    ) -> Prepared:
        if stale := self._stale():
            return Prepared(refusal=stale)
        error = self._import_all(modules, environment, lambda: self._unpack(function_id, packed))
        if self._kind == "spare":
            self._set_timer(_FORK_AHEAD_DELAY_S, self._import_on_use)
        return Prepared(refusal=None if error else self._unsafe, error=error)

    def _import_all(
        self, modules: Iterable[str], environment: RuntimeEnvironment | None, unpack: Callable[[], bytes | None]
    ) -> bytes | None:
        """Import modules, call `unpack`, and return its result.

        Imported objects are excluded from garbage collections, because a collection in a child would write to all of
        their pages. They are not collected before, which would take a tenth of the time and find almost nothing.
        """
        self._drop_idle()
        if environment is not None:
            runtime_environment.apply(environment)
        importlib.invalidate_caches()
        gc.disable()
        try:
            for module in modules:
                if module not in sys.modules:
                    with contextlib.suppress(BaseException):  # the function gets the same error and may handle it
                        importlib.import_module(module)
                    self._check_safety(module)
            return unpack()
        finally:
            if self.inherited.sources.remember():
                gc.freeze()
                self._is_settled = False
            gc.enable()

    def _unpack(self, function_id: str, packed: bytes) -> bytes | None:
        try:
            self.inherited.functions[function_id] = unpack_function(packed)
        except BaseException as error:  # of the user's module, which may even call sys.exit
            return pack_error(error)
        self._check_safety("an object of the function")
        return None

    def _settle(self) -> None:
        """Make later forks cheaper by work for which the first jobs did not have to wait.

        Most of a fork's time is spent copying page tables. A process with torch has about 220 MB of anonymous memory in
        4 KiB pages. The kernel merges them into 2 MiB pages (Linux 6.1 or later). Written pages are split and copied
        one by one, so a child does not copy more. Measured from fork to wait: 8.5 ms before, 3.5 ms after.
        """
        self._import_all(_IMPORTED_LATER, None, lambda: None)
        self._is_settled = True
        for start, size in list(_heap_regions()):
            collapse(start, size)

    def _collect(self) -> None:
        """Free the memory of forgotten functions, which are in reference cycles with their global variables."""
        self._is_collection_due = False
        gc.unfreeze()
        gc.collect()
        gc.freeze()

    def _on_use(self, _events: int) -> None:
        os.eventfd_read(self._used)
        self._import_on_use()

    def _import_on_use(self) -> None:
        late = [late for module, late in _IMPORTED_ON_USE.items() if module in sys.modules]
        self._import_all(late, None, lambda: None)

    def _check_safety(self, culprit: str) -> None:
        """Note if this process cannot be forked any more, because of `culprit`."""
        if self._unsafe is None and (why := _why_unsafe()) is not None:
            self._unsafe = Refusal(why, culprit)

    def _stale(self) -> Refusal | None:
        edited = self.inherited.sources.edited()
        return Refusal("stale", ", ".join(str(path) for path in edited[:3])) if edited else None

    def _start(self, request: Request, spec: JobSpec) -> None:
        refusal = self._refusal()
        if refusal is not None:
            request.answer(refusal)
        elif self._kind == "spare":
            request.answer(os.getpid())
            self._spare_job = spec
            self._over = True
        else:
            self._fork(request, spec)

    def _fork(self, request: Request, spec: JobSpec) -> None:
        pid = self._hand_to_idle(spec)
        if pid is None:
            pid = self._fork_worker(lambda: spec)
            self._children.add(pid, f"{os.environ[TAG]}/{pid}")
        request.answer(pid)
        self._num_forks += 1
        if not self._is_settled and self._num_forks >= _MAX_FORKS_BEFORE_SETTLING:
            self._settle()
        if not spec.reuse:
            self._set_timer(_FORK_AHEAD_DELAY_S, self._fork_ahead)

    def _fork_worker(self, receive_job: Callable[[], JobSpec]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        own_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._children.close_fds()
            self._watch_use()
            worker.main_after_fork(self.inherited, receive_job, own_pid)
        return pid

    def _watch_use(self) -> None:
        """Notify this process, from a child, when the job imports one of `_IMPORTED_ON_USE`."""
        late = [late for module, late in _IMPORTED_ON_USE.items() if module in sys.modules and late not in sys.modules]

        def notify(_module: object) -> None:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._used, 1)

        call_on_import(dict.fromkeys(late, notify))

    def _fork_ahead(self) -> None:
        """Fork a child for the next job, which halves the gap between two jobs."""
        if self._idle is not None or self._over or not self._children.pids() or self._refusal() is not None:
            return
        if not self._is_settled:
            self._settle()
        receiving, sending = os.pipe()

        def receive_job() -> JobSpec:
            os.close(sending)
            with open(receiving, "rb") as pipe:
                spec: JobSpec = pickle.load(pipe)
            return spec

        pid = self._fork_worker(receive_job)
        os.close(receiving)
        self._children.add(pid, f"{os.environ[TAG]}/{pid}", has_orphans=False)
        self._idle = pid, sending

    def _hand_to_idle(self, spec: JobSpec) -> int | None:
        if self._idle is None:
            return None
        packed = pickle.dumps(spec, protocol=5)
        # Writing more than the pipe holds would block all jobs. A child stopped by a signal would never begin.
        if len(packed) > fcntl.fcntl(self._idle[1], fcntl.F_GETPIPE_SZ) or stat_of(self._idle[0]).state in ("T", "t"):
            self._drop_idle()
            return None
        (pid, sending), self._idle = self._idle, None
        if pid not in self._children.pids():
            os.close(sending)  # it was killed
            return None
        self._children.begin(pid)
        with contextlib.suppress(BrokenPipeError), open(sending, "wb") as pipe:  # it has just exited
            pipe.write(packed)
        return pid

    def _set_timer(self, after_s: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._hub.call_at(self._hub.now_s() + after_s, call)

    def _drop_idle(self) -> None:
        if self._idle is not None:
            pid, sending = self._idle
            self._idle = None
            os.close(sending)
            self._children.signal(pid, signal.SIGKILL)

    def _refusal(self) -> Refusal | None:
        if self._kind == "warm":
            if self._unsafe is not None:
                return self._unsafe
            if (why := _why_unsafe()) is not None:
                return Refusal(why, "something that ran after the imports")
        return self._stale()


def _why_unsafe() -> Literal["threads", "cuda"] | None:
    """Return why a fork of this process could hang or break its child, or None if it is safe."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "threads"
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return "cuda"
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia-uvm"):
                return "cuda"
    return None


def _heap_regions() -> Iterator[tuple[int, int]]:
    """Yield start and size of private writable anonymous memory, rounded to huge pages."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, mode, _offset, _device, _inode, *name = line.split()
        if mode != "rw-p" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(number, 16) for number in addresses.split("-"))
        start, end = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if start < end:
            yield start, end - start
