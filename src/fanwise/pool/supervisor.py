"""Supervisor and guard: two small processes that end all workers of a pool when its owner is gone.

    owner --launches--> guard --forks--> supervisor --forks--> warm processes and spares --fork--> jobs

Both are subreapers, run no user code and do not load torch, so everything below them that loses its parent becomes
their child, and a process forked from the supervisor is as good as a fresh interpreter. Each watches the owner by a
pidfd, which also works after SIGKILL. If one or two of the three are killed, the remaining one ends the rest:

    owner and guard die       --> the supervisor kills everything below it
    owner and supervisor die  --> their descendants become the guard's, which kills them
    guard and supervisor die  --> the owner kills the processes with the pool's tag (see `processes`)

If all three are killed at once, the kernel still kills warm processes and jobs (they die with their parents), but not
processes that a job has started in another session.

Requests to the supervisor: `launch(kind, number) -> pid`, `mps(pipe_folder, visible) -> pid`, `quit mps(pipe_folder)`,
`signal(pid, number)`. Notifications: `exited(pid, status)`.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from ..links.hub import Hub
from ..links.link import Request
from ..links.transports.unix import dial
from . import mps, warm
from .processes import TAG, Children, adopt_orphans, kill_descendants
from .runtime_environment import forget_tunables

# Time for the supervisor to end everything below it after the owner's death, before the guard does.
_SUPERVISOR_S = 8.0

# An owner that was killed together with the guard may need this time to exit.
_OWNER_EXIT_S = 0.5


def main(config: dict[str, Any]) -> None:
    """Run the guard, whose exit status is the supervisor's."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, _ignore)
    forget_tunables()
    adopt_orphans()
    try:
        owner = os.pidfd_open(config["owner_pid"])
    except ProcessLookupError:
        shutil.rmtree(config["folder"], ignore_errors=True)
        return
    guard_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        _supervisor_after_fork(config, owner, guard_pid)
    supervisor = os.pidfd_open(pid)
    if supervisor not in select.select([owner, supervisor], [], [])[0]:
        select.select([supervisor], [], [], _SUPERVISOR_S)
    ended, status = os.waitpid(pid, os.WNOHANG)
    kill_descendants()
    code = os.waitstatus_to_exitcode(status) if ended else 1
    if code != 0 and _has_ended(owner, _OWNER_EXIT_S):  # the supervisor was killed before it could do this
        shutil.rmtree(config["folder"], ignore_errors=True)
    if code < 0:
        os.kill(guard_pid, -code)  # the owner sees how the supervisor ended
    sys.exit(code)


def _ignore(_number: int, _frame: object) -> None:
    """Leave signals of a terminal or batch system to the owner. Children would inherit SIG_IGN."""


def _supervisor_after_fork(config: dict[str, Any], owner: int, guard_pid: int) -> NoReturn:
    """Run the supervisor in a forked child. Exits with 0 if the pool has closed. `owner` is a pidfd."""
    code = 1
    try:
        os.setsid()
        adopt_orphans()
        code = 0 if _supervise(config, owner, guard_pid) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        kill_descendants()
        if code == 0 or _has_ended(owner, _OWNER_EXIT_S):  # otherwise the owner launches a new supervisor
            code = 0
            shutil.rmtree(config["folder"], ignore_errors=True)
        sys.stderr.flush()
        os._exit(code)


def _has_ended(pidfd: int, within_s: float) -> bool:
    return bool(select.select([pidfd], [], [], within_s)[0])


def _supervise(config: dict[str, Any], owner: int, guard_pid: int) -> bool:
    """Serve until the owner or the guard ends. Return True if the owner has closed the link."""
    hub = Hub(name="supervisor")
    over = False

    def end(*_: object) -> None:
        nonlocal over
        over = True

    guard = os.pidfd_open(guard_pid)
    hub.watch(owner, end)
    hub.watch(guard, end)
    if os.getppid() != guard_pid:  # it ended before it could be watched
        return False
    link = dial(hub, Path(config["folder"]) / "hub", bytes.fromhex(config["key"]))
    link.on_ended(end)

    def on_exit(pid: int, status: int) -> None:
        with contextlib.suppress(Exception):  # the owner is gone, and `end` is called
            link.notify("exited", pid, status)

    children = Children(hub, on_exit)
    daemons: list[tuple[Path, int]] = []

    def start_mps(pipe: Path, visible: str) -> int:
        tag = f"{os.environ[TAG]}/mps"
        pid = mps.start_daemon(pipe, visible, tag)
        daemons.append((pipe, pid))
        children.add(pid, tag)
        return pid

    def launch(kind: warm.Kind, number: int) -> int:
        tag, own_pid = f"{os.environ[TAG]}/{number}", os.getpid()
        pid = os.fork()
        if pid == 0:
            children.close_fds()
            os.close(owner)
            os.close(guard)
            warm.main_after_fork({**config, "kind": kind, "number": number}, tag, own_pid)
        children.add(pid, tag, has_orphans=False)
        return pid

    def serve(request: Request) -> None:
        match request.method:
            case "signal":
                children.signal(*request.args)
            case "mps":
                request.answer(start_mps(Path(request.args[0]), request.args[1]))
            case "quit mps":
                if pid := mps.tell_to_quit(Path(request.args[0])):
                    children.add(pid, os.environ[TAG])
            case method:
                assert method == "launch", method
                request.answer(launch(*request.args))

    link.handler = serve
    link.open()
    link.notify("hello", "supervisor", 0)
    hub.run(until=lambda: over)
    if daemons and daemons[-1][1] in children.pids():
        mps.end_daemon(*daemons[-1])
    return link.ending is not None and link.ending.clean
