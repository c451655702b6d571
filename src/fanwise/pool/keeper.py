"""The keeper: the small process above all workers, which ends them when the pool's owner is gone.

    owner --launches--> keeper --launches--> warm processes and spares --fork--> jobs

It is a subreaper: whatever loses its parent below it becomes its child, so nothing escapes. It ends when the owner's
process ends (a pidfd tells, also after SIGKILL) or the owner's link closes; then it kills everything below it until
nothing is left, and removes the pool's folder. When the keeper itself is killed, the kernel kills the warm processes
and they their jobs.

Asked over its link: `launch(config, log) -> pid`, `signal(pid, number)`. Tells: `exited(pid, status)`. Loads no user code and no torch.
"""

import contextlib
import os
import shutil
import signal
from pathlib import Path

from ..links import Hub, Request, dial
from .launching import Config, launch
from .processes import Children, adopt_orphans, kill_descendants


def main(config: Config) -> None:
    """The life of a keeper."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    try:
        _keep(config)
    finally:
        kill_descendants(os.getpid())
        shutil.rmtree(config["folder"], ignore_errors=True)


def _keep(config: Config) -> None:
    hub = Hub(name="keeper")
    over = False

    def end(*_: object) -> None:
        nonlocal over
        over = True

    try:
        owner = os.pidfd_open(config["owner_pid"])
    except ProcessLookupError:
        return
    hub.watch(owner, end)
    folder = Path(config["folder"])
    link = dial(hub, folder / "hub", bytes.fromhex(config["key"]))
    link.on_ended(end)

    def exited(pid: int, status: int) -> None:
        with contextlib.suppress(Exception):  # the owner is gone: `end` follows
            link.notify("exited", pid, status)

    children = Children(hub, exited)

    def serve(request: Request) -> None:
        if request.method == "signal":
            children.signal(*request.args)
            return
        assert request.method == "launch", request.method
        asked, log = request.args
        process = launch(asked["main"], {**asked, "keeper_pid": os.getpid()}, log=Path(log))
        process.returncode = 0  # reaped by `children`, not by Popen
        children.add(process.pid)
        request.answer(process.pid)

    link.handler = serve
    link.open()
    link.notify("hello", "keeper", 0)
    hub.run(until=lambda: over)
