"""The keeper: the small process above all workers, which ends them when the pool's owner is gone.

    owner --launches--> keeper --launches--> warm processes and spares --fork--> jobs

It is a subreaper: whatever loses its parent below it becomes its child, so nothing escapes. It ends when the owner's
process ends (a pidfd tells, also after SIGKILL) or the owner closes the link; then it kills everything below it until
nothing is left, and removes the pool's folder. When the keeper itself is killed, the kernel kills the warm processes
and they their jobs; the owner looks for what these had started.

Asked over its link: `launch(config, log) -> pid`, `signal(pid, number)`. Tells: `exited(pid, status)`. Loads no user
code and no torch.
"""

import contextlib
import os
import select
import shutil
import signal
from pathlib import Path

from ..links import Hub, Request, dial
from .children import Children
from .launching import MARK, Config, launch
from .pages import with_tunables
from .processes import adopt_orphans, kill_descendants


def main(config: Config) -> None:
    """The life of a keeper."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, _stay)
    adopt_orphans()
    try:
        owner = os.pidfd_open(config["owner_pid"])
    except ProcessLookupError:
        shutil.rmtree(config["folder"], ignore_errors=True)
        return
    closed = False
    try:
        closed = _keep(config, owner)
    finally:
        kill_descendants(os.getpid())
        if closed or select.select([owner], [], [], 0)[0]:  # else the owner lives, and launches a new keeper
            shutil.rmtree(config["folder"], ignore_errors=True)


def _stay(_number: int, _frame: object) -> None:
    """A terminal's or batch system's signal is for the owner. Not SIG_IGN: what is launched would inherit that."""


def _keep(config: Config, owner: int) -> bool:
    """Until the owner is gone. True when it said goodbye."""
    hub = Hub(name="keeper")
    over = False

    def end(*_: object) -> None:
        nonlocal over
        over = True

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
        line = f"{os.environ[MARK]}/{asked['number']}"
        # A warm process gathers its memory into huge pages before it forks.
        environment = with_tunables(os.environ) if asked["kind"] == "warm" else None
        config = {**asked, "keeper_pid": os.getpid()}
        process = launch(asked["main"], config, log=Path(log), mark=line, environment=environment)
        process.returncode = 0  # reaped by `children`, not by Popen
        children.add(process.pid, line)
        request.answer(process.pid)

    link.handler = serve
    link.open()
    link.notify("hello", "keeper", 0)
    hub.run(until=lambda: over)
    return link.ending is not None and link.ending.clean
