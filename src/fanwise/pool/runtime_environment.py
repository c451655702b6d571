"""Where a job runs: the working folder, `sys.path` and environment of whoever submitted it, at the time of the submit.

    submitter: look(base)  -->  RuntimeEnvironment, on the job's record  -->  worker: apply(environment)

The processes below a pool are started once, with the environment the pool began with. A job's runtime environment says
what has become different since, as a rule nothing, so it is small and costs little to apply.

Invariant: what a lease decides (threads, GPUs) and what the pool needs for itself is never taken from the submitter.
"""

import contextlib
import os
import sys
from collections.abc import Mapping

from .launching import OWN_VARIABLES
from .specs import RuntimeEnvironment

# The environment this process was started with; a forked worker has that of the warm process.
_base: dict[str, str] = {}
_applied: RuntimeEnvironment | None = None


def look(base: Mapping[str, str] | None = None) -> RuntimeEnvironment:
    """The runtime environment of this process now; `base`: what it is compared with, None in a process below a pool."""
    before = _base if base is None else base
    now = dict(os.environ)
    changes: dict[str, str | None] = {name: value for name, value in now.items() if before.get(name) != value}
    changes.update(dict.fromkeys(before.keys() - now.keys()))
    own = tuple(sorted((name, value) for name, value in changes.items() if name not in OWN_VARIABLES))
    return RuntimeEnvironment(_folder(), tuple(sys.path), own)


def remember_base() -> None:
    """This process has just been started: its environment is what later ones are compared with."""
    _base.clear()
    _base.update(os.environ)


def apply(environment: RuntimeEnvironment, *, again: bool = False) -> None:
    """Make it this process's own. `again`: also when nothing changed since the last time, to undo user code."""
    global _applied
    if environment == _applied and not again:
        return
    _applied = environment
    target = {**_base, **{name: value for name, value in environment.variables if value is not None}}
    for name, value in environment.variables:
        if value is None:
            target.pop(name, None)
    for name in set(os.environ) - target.keys() - OWN_VARIABLES:
        del os.environ[name]
    for name, value in target.items():
        if name not in OWN_VARIABLES and os.environ.get(name) != value:
            os.environ[name] = value
    sys.path[:] = environment.path
    with contextlib.suppress(OSError):  # a folder that is gone meanwhile leaves the job where it is
        os.chdir(environment.folder)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
