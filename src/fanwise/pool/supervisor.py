"""The supervisor: the small process above all workers, which ends them when the pool's owner is gone.

    owner --launches--> guard --forks--> supervisor --forks--> warm processes and spares --fork--> jobs

It is a subreaper: whatever loses its parent below it becomes its child, so nothing escapes. It ends when the owner's
process ends (a pidfd tells, also after SIGKILL), when the guard ends, or when the owner closes the link; then it kills
everything below it until nothing is left. When the supervisor itself is killed, the kernel kills the warm processes
and they their jobs, and the guard (see there) ends what these had started.

Requests over its link: `launch(config) -> pid`, `mps(pipe_folder, visible) -> pid`, `quit mps(pipe_folder)`,
`signal(pid, number)`.
Notifications: `exited(pid, status)`. Loads no user code and no torch, so a process that it forks is as good as a
freshly executed interpreter, and is there at once.
"""

import contextlib
import os
import select
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from ..links.hub import Hub
from ..links.link import Request
from ..links.transports.unix import dial
from . import mps, warm
from .children import Children
from .launching import Config
from .marks import MARK
from .processes import adopt_orphans, kill_descendants

# An owner that was killed together with the guard may still be giving back its memory when nothing is left to be ended.
DYING_S = 0.5


def main_after_fork(config: Config, owner: int, guard_pid: int) -> NoReturn:
    """The life of a supervisor just forked by the guard; `owner` is a pidfd. Exits with 0 when the pool is over."""
    code = 1
    try:
        os.setsid()
        adopt_orphans()
        code = 0 if _keep(config, owner, guard_pid) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        kill_descendants()
        if code == 0 or is_gone(owner, within_s=DYING_S):  # else the owner lives, and launches a new supervisor
            code = 0
            shutil.rmtree(config["folder"], ignore_errors=True)
        sys.stderr.flush()
        os._exit(code)


def is_gone(pidfd: int, within_s: float = 0.0) -> bool:
    """Whether that process has ended, or does within so many seconds."""
    return bool(select.select([pidfd], [], [], within_s)[0])


def _keep(config: Config, owner: int, guard_pid: int) -> bool:
    """Until the owner or the guard is gone. True when the owner said goodbye."""
    hub = Hub(name="supervisor")
    over = False

    def end(*_: object) -> None:
        nonlocal over
        over = True

    guard = os.pidfd_open(guard_pid)
    hub.watch(owner, end)
    hub.watch(guard, end)
    if os.getppid() != guard_pid:  # it was gone before it could be watched
        return False
    folder = Path(config["folder"])
    link = dial(hub, folder / "hub", bytes.fromhex(config["key"]))
    link.on_ended(end)

    def exited(pid: int, status: int) -> None:
        with contextlib.suppress(Exception):  # the owner is gone: `end` follows
            link.notify("exited", pid, status)

    children = Children(hub, exited)
    daemons: list[tuple[Path, int]] = []

    def serve(request: Request) -> None:
        if request.method == "signal":
            children.signal(*request.args)
            return
        if request.method == "mps":
            pipe, visible = Path(request.args[0]), request.args[1]
            mark = f"{os.environ[MARK]}/mps"
            daemons.append((pipe, mps.start_daemon(pipe, visible, mark)))
            children.add(daemons[-1][1], mark)
            request.answer(daemons[-1][1])
            return
        if request.method == "quit mps":
            if pid := mps.tell_to_quit(Path(request.args[0])):
                children.add(pid, os.environ[MARK])
            return
        assert request.method == "launch", request.method
        asked = request.args[0]
        mark, me = f"{os.environ[MARK]}/{asked['number']}", os.getpid()
        pid = os.fork()
        if pid == 0:
            children.close_fds()
            os.close(owner)
            os.close(guard)
            warm.main_after_fork(asked, mark, me)
        children.add(pid, mark)
        request.answer(pid)

    link.handler = serve
    link.open()
    link.notify("hello", "supervisor", 0)
    hub.run(until=lambda: over)
    if daemons and daemons[-1][1] in children.pids():
        mps.end_daemon(*daemons[-1])
    return link.ending is not None and link.ending.clean
