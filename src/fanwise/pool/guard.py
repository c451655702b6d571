"""The guard: the outermost process of a pool, which does nothing but outlive the supervisor.

    owner --launches--> guard --forks--> supervisor --forks--> warm processes and spares --fork--> jobs

Supervisor and guard are both subreapers, one inside the other, and run no user code. Whichever of them, and of the
owner, is killed, alone or two at the same moment, one is left who sees it. A supervisor or guard is an ancestor of
everything below, so it also ends what has left its session, its parents and its environment:

    owner and guard die       --> the supervisor ends everything below it
    owner and supervisor die  --> what they had becomes the guard's, which ends it
    guard and supervisor die  --> the owner ends what carries the pool's mark (see `marks`), which is nearly all

When all three are killed at once, the kernel still ends warm processes and jobs (they die with their parents), but
not what a job has started in a session of its own: nobody is left to do it.
"""

import os
import select
import shutil
import signal
import sys

from . import supervisor
from .launching import Config
from .marks import take_mark
from .pages import forget_tunables
from .processes import adopt_orphans, kill_descendants

# The owner is gone and the supervisor is still there: it has this long to end everything below it.
_KEEPER_S = 8.0


def main(config: Config) -> None:
    """The life of a guard; its exit status is the supervisor's."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, _stay)
    forget_tunables()
    take_mark(config["mark"])
    adopt_orphans()
    try:
        owner = os.pidfd_open(config["owner_pid"])
    except ProcessLookupError:
        shutil.rmtree(config["folder"], ignore_errors=True)
        return
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        supervisor.main_after_fork(config, owner, me)
    kept = os.pidfd_open(pid)
    if kept not in select.select([owner, kept], [], [])[0]:
        select.select([kept], [], [], _KEEPER_S)
    ended, status = os.waitpid(pid, os.WNOHANG)
    kill_descendants()
    code = os.waitstatus_to_exitcode(status) if ended else 1
    if code != 0 and supervisor.is_gone(owner, within_s=supervisor.DYING_S):  # it was killed before it could do this
        shutil.rmtree(config["folder"], ignore_errors=True)
    if code < 0:
        os.kill(me, -code)  # who launched us shall see how the supervisor ended
    sys.exit(code)


def _stay(_number: int, _frame: object) -> None:
    """A terminal's or batch system's signal is for the owner. Not SIG_IGN: what is launched would inherit that."""
