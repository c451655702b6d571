"""The warm process and the spare: interpreters that have imported what a function needs, before it is needed.

A warm process is a freshly executed interpreter, never a fork of the user's. It imports what the functions and their
modules use, touches no GPU, keeps one OS thread, and forks a child for each job. Before each fork it looks whether
that is still safe: one thread, no CUDA context, and no imported source file changed since. Where it is not, it
refuses and says why; the pool then runs the job in a spare.

A spare is the same interpreter that does not fork: it becomes the worker itself, for one job.

Asked by the pool: `prepare(function_id, function, modules, path, cwd) -> Prepared`, `fork(JobSpec) -> pid | Refusal`
(warm only), `signal(pid, number)`, `run(JobSpec)` (spare only). Tells: `exited(pid, status)`.
"""

import contextlib
import gc
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Literal

from ..links import Hub, Link, Request, dial
from ..links.codec import pack_error
from . import worker
from .functions import unpack_function
from .launching import Config
from .pages import collapse, forget_tunables
from .preload import Snapshot, changed, sources_of
from .processes import Children, adopt_orphans, die_with_parent
from .specs import Home, JobSpec, Prepared, Refusal
from .worker import Function

# What a library imports at its first real use: over a second in every trial if the warm process has not done it.
# torch: the first optimizer imports torch._dynamo.
_IMPORTED_LATE = {"torch": "torch._dynamo"}


def main(config: Config) -> None:
    """The life of a warm process (`kind` warm) or a spare (`kind` spare)."""
    die_with_parent(config["keeper_pid"])
    forget_tunables()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    home = Home(config["socket"], bytes.fromhex(config["key"]))
    warm = _Warm(home, config["kind"], config["number"])
    spec = warm.serve()
    if spec is not None:
        worker.main(home, spec, warm.functions, "spare")


class _Warm:
    """The state of this process: the functions it holds, what is unsafe about it, its children."""

    def __init__(self, home: Home, kind: str, number: int) -> None:
        self.functions: dict[str, Function] = {}
        self._home = home
        self._kind = kind
        self._hub = Hub(name=kind)
        self._link: Link = dial(self._hub, Path(home.socket), home.key)
        self._link.handler = self._serve
        self._link.on_ended(lambda link, ending: self._end())
        self._link.open()
        self._children = Children(self._hub, self._exited)
        self._over = False
        self._spare_job: JobSpec | None = None
        self._unsafe: Refusal | None = None
        self._sources: Snapshot = {}
        self._link.notify("hello", kind, number)

    def serve(self) -> JobSpec | None:
        """Until the pool closes the link; a spare returns with its job."""
        self._hub.run(until=lambda: self._over)
        self._link.close()
        self._hub.close()
        return self._spare_job

    def _end(self) -> None:
        self._over = True
        if self._spare_job is None:
            for pid in self._children.pids():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _exited(self, pid: int, status: int) -> None:
        with contextlib.suppress(Exception):  # the pool is gone: `_end` follows
            self._link.notify("exited", pid, status)

    def _serve(self, request: Request) -> None:
        if request.method == "prepare":
            request.answer(self._prepare(*request.args))
        elif request.method == "fork":
            self._fork(request, request.args[0])
        elif request.method == "signal":
            self._children.signal(*request.args)
        else:
            assert request.method == "run", request.method
            self._spare_job = request.args[0]
            self._over = True

    # -- preparing -------------------------------------------------------------------------------------------------

    def _prepare(self, function_id: str, packed: bytes, modules: list[str], path: list[str], cwd: str) -> Prepared:
        sys.path[:] = path
        with contextlib.suppress(OSError):
            os.chdir(cwd)
        importlib.invalidate_caches()
        for module in ("numpy", *modules):
            self._import(module)
        try:
            self.functions[function_id] = unpack_function(packed)
        except Exception as error:
            return Prepared(error=pack_error(error))
        self._look_what_broke("what the function refers to")
        for module, late in _IMPORTED_LATE.items():
            if module in sys.modules:
                self._import(late)
        self._sources.update({p: s for p, s in sources_of().items() if p not in self._sources})
        gc.collect()
        gc.freeze()  # the children shall not write to these pages only because a collection looks at them
        if self._kind == "warm":
            collapse()
        return Prepared(refusal=self._unsafe)

    def _import(self, module: str) -> None:
        with contextlib.suppress(Exception):  # the function will meet the same error, and may expect it
            importlib.import_module(module)
        self._look_what_broke(module)

    def _look_what_broke(self, module: str) -> None:
        if self._unsafe is None:
            why = _what_is_unsafe()
            if why is not None:
                self._unsafe = Refusal(why, module)

    # -- forking ---------------------------------------------------------------------------------------------------

    def _fork(self, request: Request, spec: JobSpec) -> None:
        refusal = self._refusal()
        if refusal is not None:
            request.answer(refusal)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._children.close_fds()
            worker.main_after_fork(self._home, spec, self.functions, me)
        self._children.add(pid)
        request.answer(pid)

    def _refusal(self) -> Refusal | None:
        if self._unsafe is not None:
            return self._unsafe
        why = _what_is_unsafe()
        if why is not None:
            return Refusal(why, "something that ran after the imports")
        edited = changed(self._sources)
        if edited:
            return Refusal("stale", ", ".join(str(path) for path in edited[:3]))
        return None


def _what_is_unsafe() -> Literal["threads", "cuda"] | None:
    """`threads` or `cuda` when a fork of this process could hang or break its child, else None."""
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
