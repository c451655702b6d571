"""Where a job runs: the working folder, `sys.path` and environment of whoever submitted it, at the time of the submit.

    submitter: look(base)  -->  Surroundings, on the job's record  -->  worker: apply(surroundings)

The processes below a pool are started once, with the environment the pool began with. A job's surroundings say what
has become different since, as a rule nothing, so they are small and cost little to apply.

Invariant: what a lease decides (threads, GPUs) and what the pool needs for itself is never taken from the submitter.
"""

import contextlib
import os
import sys
from collections.abc import Mapping

from .launching import OWN_VARIABLES
from .specs import Surroundings

# The environment this process was started with; a forked worker has that of the warm process.
_base: dict[str, str] = {}
_applied: Surroundings | None = None


def look(base: Mapping[str, str] | None = None) -> Surroundings:
    """The surroundings of this process now; `base`: what it is compared with, None in a process below a pool."""
    before = _base if base is None else base
    now = dict(os.environ)
    changes: dict[str, str | None] = {name: value for name, value in now.items() if before.get(name) != value}
    changes.update(dict.fromkeys(before.keys() - now.keys()))
    own = tuple(sorted((name, value) for name, value in changes.items() if name not in OWN_VARIABLES))
    return Surroundings(_folder(), tuple(sys.path), own)


def remember_base() -> None:
    """This process has just been started: its environment is what surroundings are compared with."""
    _base.clear()
    _base.update(os.environ)


def apply(surroundings: Surroundings, *, again: bool = False) -> None:
    """Make them this process's own. `again`: also when nothing changed since the last time, to undo user code."""
    global _applied
    if surroundings == _applied and not again:
        return
    _applied = surroundings
    target = {**_base, **{name: value for name, value in surroundings.variables if value is not None}}
    for name, value in surroundings.variables:
        if value is None:
            target.pop(name, None)
    for name in set(os.environ) - target.keys() - OWN_VARIABLES:
        del os.environ[name]
    for name, value in target.items():
        if name not in OWN_VARIABLES and os.environ.get(name) != value:
            os.environ[name] = value
    sys.path[:] = surroundings.path
    with contextlib.suppress(OSError):  # a folder that is gone meanwhile leaves the job where it is
        os.chdir(surroundings.folder)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
