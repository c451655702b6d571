"""Starting the freshly executed interpreter that all processes of a pool are forks of.

The child gets one line of JSON on its standard input: our `sys.path` and what its main needs, the key of the pool
among it; nothing secret is on a command line or in the environment. Numeric libraries are held to one thread from the
start: importing numpy alone starts OpenBLAS threads otherwise, and a process with threads cannot be forked safely.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .marks import MARK, with_room
from .pages import with_tunables

_BOOT = (
    "import json, sys; c = json.loads(sys.stdin.buffer.readline()); sys.path[:] = c['path']; "
    "from fanwise.pool import guard; guard.main(c)"
)

# Of numeric libraries, JAX (which reads its own when it makes its first array) and TensorFlow (the same).
THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    *("PJRT_NPROC", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
)

# One OS thread until a lease says otherwise; and torch must ask NVML, not CUDA, whether there is a GPU, because a
# process with a CUDA context cannot be forked. pyarrow, which pandas imports where it is installed, starts a thread of
# its memory allocator (jemalloc) unless told not to, and a process with threads cannot be forked either.
_QUIET_ENVIRONMENT = {
    **dict.fromkeys(THREAD_VARIABLES, "1"),
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

# Of jobs that share a GPU, see `mps`: the daemon's sockets and logs, and the limit of a client's device memory.
MPS_PIPE_FOLDER, MPS_LOG_FOLDER = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MPS_MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
MPS_VARIABLES = (MPS_PIPE_FOLDER, MPS_LOG_FOLDER, MPS_MEMORY_LIMIT)

# Variables that `launch` sets, whatever the user's environment has.
FIXED_VARIABLES = frozenset((*_QUIET_ENVIRONMENT, MARK))

# Variables that belong to the pool, or to a lease, and not to the user's runtime environment.
OWN_VARIABLES = FIXED_VARIABLES | {"CUDA_VISIBLE_DEVICES", *MPS_VARIABLES}

Config = dict[str, Any]  # Any: JSON


def own_path() -> list[str]:
    """Return `sys.path` for a process that runs no user code: modules in the working folder do not shadow others."""
    return sorted(sys.path, key=lambda folder: folder == "")


def launch(
    config: Mapping[str, object], *, log: Path, mark: str, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start `python` with the guard's `main(config)`; its output goes to `log`.

    Args:
        mark: the line of processes it belongs to.
        environment: what it finds in its environment beside our own variables.

    Raises:
        OSError: no process can be started; the machine's limits say why.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # A warm process, which is a fork of it, gathers its memory into huge pages before it forks.
            env={**with_tunables(environment), **_QUIET_ENVIRONMENT, MARK: with_room(mark)},
            start_new_session=True,
        )
    assert process.stdin is not None, "asked for a pipe"
    with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit tells
        process.stdin.write(json.dumps({"path": own_path(), "mark": mark, **config}).encode() + b"\n")
        process.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    return process
