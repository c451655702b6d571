"""The folder and `sys.path` of a job on another machine.

    submitter: of_the_user(look())  -->  its own folders of code, none of its Python
    host:      fitted(environment, here)  -->  those that are here too, and before the host's own

A folder that the submitter has and the host has not is left out; the job begins in the host's folder then, which is
where Ray puts `runtime_env={"working_dir": ...}`.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..specs import RuntimeEnvironment


def of_the_user(environment: RuntimeEnvironment, python: Sequence[str]) -> RuntimeEnvironment:
    """Without the folders of the submitter's own Python: each machine has those of its own.

    Args:
        python: where it is installed, as `sys.prefix`.

    >>> of_the_user(RuntimeEnvironment("/me", ("/me", "/venv/lib/site-packages")), ["/venv"]).path
    ('/me',)
    """
    below = tuple(os.path.join(os.path.normpath(folder), "") for folder in python)
    return replace(environment, path=tuple(entry for entry in environment.path if not entry.startswith(below)))


def fitted(
    environment: RuntimeEnvironment, here: RuntimeEnvironment, is_folder: Callable[[str], bool] = os.path.isdir
) -> RuntimeEnvironment:
    """What of it can be had on this machine, before what this machine has itself.

    >>> at_home = RuntimeEnvironment("/me/work", ("/me/work", "/me/lib"))
    >>> fitted(at_home, RuntimeEnvironment("/tmp/ray", ("/tmp/ray",)), lambda folder: folder == "/me/lib")
    RuntimeEnvironment(folder='/tmp/ray', path=('/me/lib', '/tmp/ray'), variables=())
    """
    own = [entry for entry in environment.path if is_folder(entry)]
    return RuntimeEnvironment(
        environment.folder if is_folder(environment.folder) else here.folder,
        tuple(dict.fromkeys((*own, *here.path))),
        environment.variables,
    )
