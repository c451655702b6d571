"""Starting a freshly executed interpreter that runs one of our mains: keeper, warm process, spare.

The child gets one line of JSON on its standard input: which main, our `sys.path`, and what that main needs, the
key of the pool among it; nothing secret is on a command line or in the environment. Numeric libraries are held to
one thread from the start: importing numpy alone starts OpenBLAS threads otherwise, and a process with threads
cannot be forked safely.

Every process carries a mark in its environment that names the line of processes it comes from, `4711.1/2/4720`: what
it starts inherits the mark, so that an orphan can be told from the children of others.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MARK = "FANWISE_LINE"

_BOOT = (
    "import json, sys; c = json.loads(sys.stdin.buffer.readline()); sys.path[:] = c['path']; "
    "import importlib; importlib.import_module(c['main']).main(c)"
)

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

# One OS thread until a lease says otherwise; and torch must ask NVML, not CUDA, whether there is a GPU, because a
# process with a CUDA context cannot be forked.
_QUIET_ENVIRONMENT = {
    **dict.fromkeys(THREAD_VARIABLES, "1"),
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}

# Variables that belong to the pool, or to a lease, and not to the user's surroundings.
OWN_VARIABLES = frozenset((*_QUIET_ENVIRONMENT, MARK, "CUDA_VISIBLE_DEVICES"))

Config = dict[str, Any]  # Any: JSON


def launch(
    main: str, config: Mapping[str, object], *, log: Path, mark: str, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start `python` with `main` (a module of ours that has a function main(config)); its output goes to `log`.

    Args:
        mark: the line of processes it belongs to, see the module.
        environment: what it finds in its environment beside our own variables; None: what this process has.

    Raises:
        OSError: no process can be started; the machine's limits say why.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**(os.environ if environment is None else environment), **_QUIET_ENVIRONMENT, MARK: mark},
            start_new_session=True,
        )
    assert process.stdin is not None, "asked for a pipe"
    with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit tells
        process.stdin.write(json.dumps({"path": sys.path, **config, "main": main}).encode() + b"\n")
        process.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    return process
