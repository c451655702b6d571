"""NVIDIA's Multi-Process Service (MPS): jobs that share a GPU run on it at the same time instead of taking turns.

    owner: MpsDaemon.use --> supervisor: start_daemon --> control socket answers --> variables for the job's environment

The control daemon is a child of the supervisor, so it ends with the pool like all workers. It starts one server process
when the first client connects. A daemon that the user has started is used instead, and never stopped.
"""

import contextlib
import errno
import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..base.errors import ClosedError, WorkerLostError
from ..base.text import printable_line
from ..links.hub import Hub
from ..links.link import Link, Reply
from .leases import Gpu, GpuShare
from .output import tail
from .processes import TAG, descendants_of, die_with_parent, kill_all, reap_all
from .runtime_environment import MPS_LOG_FOLDER, MPS_MEMORY_LIMIT, MPS_PIPE_FOLDER, MPS_VARIABLES

_log = logging.getLogger(__name__)

PROGRAM = "nvidia-cuda-mps-control"
_DEFAULT_PIPE_FOLDER = Path("/tmp/nvidia-mps")
_OLDEST_CAPABILITY = (7, 0)
_MIB = 1 << 20

_READY_S = 10.0
_POLL_S = 0.01
_QUIT_S = 2.0

Variables = tuple[tuple[str, str], ...]


def mps_problem(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> str:
    """Return why jobs cannot share these GPUs under MPS, or an empty string if they can."""
    for gpu in gpus:
        if gpu.visible.startswith("MIG-"):
            return f"GPU {gpu.index} is in MIG mode"
        if (0, 0) < gpu.compute_capability < _OLDEST_CAPABILITY:
            shown = ".".join(map(str, gpu.compute_capability))
            return f"GPU {gpu.index} ({gpu.name}) has compute capability {shown}, and MPS needs 7.0 to isolate memory"
    if not has_users_daemon(environment) and shutil.which(PROGRAM, path=environment.get("PATH")) is None:
        return f"{PROGRAM} is not on PATH; it comes with the NVIDIA driver"
    return ""


def has_users_daemon(environment: Mapping[str, str]) -> bool:
    """Return whether CUDA programs started with this environment use an MPS daemon already."""
    return MPS_PIPE_FOLDER in environment or is_answering(_DEFAULT_PIPE_FOLDER)


def is_answering(pipe_folder: Path) -> bool:
    """Return whether a control daemon listens in this folder. Does not block."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(pipe_folder / "control"))
        except BlockingIOError:
            return True  # it listens, and its queue is full
        except OSError as error:
            return error.errno == errno.EPROTOTYPE  # it listens for another type of socket
    return True


class MpsDaemon:
    """The MPS daemon of a pool, seen from the owner. Used on the event loop's thread.

    The daemon is started by the first `use`. If it dies, the next `use` starts another one.

    Args:
        folder: the pool's folder, in which each daemon gets a folder for its sockets and one for its logs.
        environment: environment variables of the pool's processes.
    """

    def __init__(self, hub: Hub, folder: Path, environment: Mapping[str, str]) -> None:
        self._hub = hub
        self._folder = folder
        self._environment = environment
        self.attach((), enabled=False)
        self._supervisor: Link | None = None
        self._num_started = 0
        self._pid = 0
        self._pipe: Path | None = None  # of the daemon that is starting or ready
        self._is_ready = False
        self._is_quitting = False
        self._waiting: list[tuple[GpuShare, Callable[[Variables], None]]] = []

    def attach(self, gpus: Sequence[Gpu], *, enabled: bool) -> None:
        """Serve another pool, which has these GPUs. Called while there is no daemon. `enabled`: it may use MPS."""
        self._gpus = {gpu.visible: gpu for gpu in gpus}
        self._enabled = enabled
        self._checked = False
        self._is_users = False

    def quit(self) -> bool:
        """Tell the daemon to quit. Return True if there is none left."""
        if self._pipe is None:
            return True
        if not self._is_quitting and self._supervisor is not None:
            self._is_quitting = True
            with contextlib.suppress(WorkerLostError, ClosedError):  # `supervisor_ended` follows
                self._supervisor.notify("quit mps", str(self._pipe))
        return False

    def use(self, share: GpuShare, callback: Callable[[Variables], None]) -> None:
        """Call `callback` with environment variables for a job that has a share of a GPU, now or later.

        There are none if MPS cannot be used. The first time, a warning says why.
        """
        if self._enabled and not self._checked:
            self._checked = True
            self._is_users = has_users_daemon(self._environment)
            if problem := mps_problem(tuple(self._gpus.values()), self._environment):
                self._disable(problem)
        if not self._enabled:
            callback(())
        elif self._is_users or self._is_ready:
            callback(self._variables(share))
        else:
            self._waiting.append((share, callback))
            self._start()

    @property
    def is_used(self) -> bool:
        return self._enabled and self._checked

    def _variables(self, share: GpuShare) -> Variables:
        variables = [] if self._is_users else [(MPS_PIPE_FOLDER, str(self._pipe))]
        gpu = self._gpus.get(share.visible)
        if gpu is not None and gpu.memory_bytes and MPS_MEMORY_LIMIT not in self._environment:
            variables.append((MPS_MEMORY_LIMIT, f"0={int(gpu.memory_bytes * share.fraction) // _MIB}M"))
        return tuple(variables)

    def _start(self) -> None:
        if self._supervisor is None or self._pipe is not None:
            return  # `supervisor_linked` calls this again, or the daemon is starting
        self._num_started += 1
        pipe = self._pipe = self._folder / f"mps{self._num_started}"
        uuids = [name for name in self._gpus if name.startswith("GPU-")]
        # Numbers in CUDA_VISIBLE_DEVICES of the daemon would be renumbered for its clients, so only UUIDs are passed.
        visible = ",".join(uuids) if len(uuids) == len(self._gpus) else ""
        try:
            reply = self._supervisor.call("mps", str(pipe), visible)
        except (WorkerLostError, ClosedError):
            return  # `supervisor_ended` follows
        reply.add_done_callback(lambda reply: self._started(pipe, reply))

    def _started(self, pipe: Path, reply: Reply) -> None:
        try:
            pid = reply.result()
        except (WorkerLostError, ClosedError):
            return
        except Exception as error:
            self._disable(f"{PROGRAM} could not be started: {error}")
            return
        if pipe == self._pipe:
            self._pid = pid
            self._poll(pipe, self._hub.now_s() + _READY_S)

    def _poll(self, pipe: Path, until_s: float) -> None:
        if pipe != self._pipe:
            return  # it has exited
        if is_answering(pipe):
            self._is_ready = True
            self._run_waiting()
        elif self._hub.now_s() < until_s:
            self._hub.call_at(self._hub.now_s() + _POLL_S, lambda: self._poll(pipe, until_s))
        else:
            self._disable(f"{PROGRAM} did not open its socket within {_READY_S:g} s{_last_log_line(pipe)}")

    def _disable(self, problem: str) -> None:
        self._enabled = False
        _log.warning("jobs that share a GPU take turns on it, which is slower, because %s", problem)
        self._run_waiting()

    def _run_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for share, callback in waiting:
            self.use(share, callback)

    def supervisor_linked(self, link: Link) -> None:
        self._supervisor = link
        if self._waiting:
            self._start()

    def supervisor_ended(self) -> None:
        self._supervisor = None
        self._reset()
        waiting, self._waiting = self._waiting, []
        for _, callback in waiting:
            callback(())  # the start of the job fails, because its interpreter is gone, and is repeated

    def exited(self, pid: int, status: int) -> None:
        """Handle the exit of a child of the supervisor, which may be the daemon."""
        if pid != self._pid or self._pipe is None:
            return
        pipe, was_ready, was_quitting = self._pipe, self._is_ready, self._is_quitting
        self._reset()
        if was_quitting:
            return
        if was_ready:
            _log.warning(
                "the MPS daemon (pid %d) ended with status %d%s; the next job that shares a GPU starts another one",
                *(pid, status, _last_log_line(pipe)),
            )
        else:
            self._disable(f"{PROGRAM} ended with status {status}{_last_log_line(pipe)}")

    def _reset(self) -> None:
        self._pid, self._pipe, self._is_ready, self._is_quitting = 0, None, False, False


def _log_folder(pipe: Path) -> Path:
    return pipe.with_suffix(".log")


def _last_log_line(pipe: Path) -> str:
    lines = tail(_log_folder(pipe) / "control.log", max_lines=1).strip().splitlines()
    return f", with the log line {printable_line(lines[-1])!r}" if lines else ""


# -- in the supervisor -------------------------------------------------------------------------------------------------


def start_daemon(pipe: Path, visible: str, tag: str) -> int:
    """Start a control daemon as a child of this process, with its sockets in a new folder `pipe`. Return its pid.

    Args:
        visible: its CUDA_VISIBLE_DEVICES; empty: all GPUs of the machine.
        tag: the tag of daemon and server, see `processes`.
    """
    for folder in (pipe, _log_folder(pipe)):
        folder.mkdir(mode=0o700)
    environment = {**_environment(pipe), TAG: tag}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if visible:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    parent_pid = os.getpid()
    # -f: in the foreground, so that it stays a child. It has its own session, like all children of the supervisor.
    process = subprocess.Popen(
        [PROGRAM, "-f"],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(parent_pid),
    )
    process.returncode = 0  # the supervisor reaps it
    return process.pid


def _environment(pipe: Path) -> dict[str, str]:
    variables = {MPS_PIPE_FOLDER: str(pipe), MPS_LOG_FOLDER: str(_log_folder(pipe))}
    return {**{name: value for name, value in os.environ.items() if name not in MPS_VARIABLES}, **variables}


def end_daemon(pipe: Path, pid: int) -> None:
    """Kill all other processes below this one, then tell the daemon to quit. Blocks for at most 2 s.

    The server ends only when it has no clients. The caller kills the rest.
    """
    until_s = time.monotonic() + _QUIT_S
    spared: set[int] = set()
    is_quitting = False
    while not reap_all() and time.monotonic() < until_s:
        spared |= {pid, *descendants_of(pid)}
        clients = set(descendants_of(os.getpid())) - spared
        kill_all(clients)
        if not clients and not is_quitting:
            if not is_answering(pipe):
                return  # it does not listen yet, or its folder is gone
            is_quitting = True
            spared.add(tell_to_quit(pipe))
        time.sleep(_POLL_S)


def tell_to_quit(pipe: Path) -> int:
    """Start the control program, a child of this process, with the command to quit. Return its pid, or 0."""
    try:
        control = subprocess.Popen(
            [PROGRAM], env=_environment(pipe), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:
        return 0
    assert control.stdin is not None, "asked for a pipe"
    with contextlib.suppress(BrokenPipeError), control.stdin as stdin:
        stdin.write(b"quit\n")
    control.returncode = 0  # the supervisor reaps it
    return control.pid
