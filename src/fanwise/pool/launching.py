"""Start of the guard, a fresh interpreter from which all processes of a pool are forked.

The child reads one line of JSON from its standard input, with `sys.path`, the folder and the key of the pool. Nothing
secret is on a command line or in the environment. Numeric libraries are limited to one thread: importing numpy alone
would start the threads of OpenBLAS, and a process with threads cannot be forked safely.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .pages import with_tunables
from .processes import TAG, with_room

_BOOT = (
    "import json, sys; c = json.loads(sys.stdin.buffer.readline()); sys.path[:] = c['path']; "
    "from fanwise.pool import supervisor; supervisor.main(c)"
)

# Numeric libraries, JAX and TensorFlow read these.
THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    *("PJRT_NPROC", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
)

# torch must ask NVML instead of CUDA whether there is a GPU, because a process with a CUDA context cannot be forked.
# pyarrow, which pandas imports, starts a thread of its memory allocator (jemalloc) unless told not to.
_FORK_SAFE_ENVIRONMENT = {
    **dict.fromkeys(THREAD_VARIABLES, "1"),
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

# Folders for sockets and logs of the MPS daemon, and the limit of a client's device memory; see `mps`.
MPS_PIPE_FOLDER, MPS_LOG_FOLDER = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MPS_MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
MPS_VARIABLES = (MPS_PIPE_FOLDER, MPS_LOG_FOLDER, MPS_MEMORY_LIMIT)

# Variables that `launch` sets, even if the user's environment has others.
FIXED_VARIABLES = frozenset((*_FORK_SAFE_ENVIRONMENT, TAG))

# Variables that belong to the pool or to a lease, and not to the user's runtime environment.
OWN_VARIABLES = FIXED_VARIABLES | {"CUDA_VISIBLE_DEVICES", *MPS_VARIABLES}

Config = dict[str, Any]


def own_path() -> list[str]:
    """Return `sys.path` with the working folder last, so that files in it do not shadow modules."""
    return sorted(sys.path, key=lambda folder: folder == "")


def launch(
    config: Mapping[str, object], *, log: Path, tag: str, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start an interpreter with the guard's `main(config)`.

    Args:
        log: file for its output.
        tag: tag of the process, see `processes`.
        environment: its environment, to which the pool's variables are added.

    Raises:
        OSError: the process cannot be started.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**with_tunables(environment), **_FORK_SAFE_ENVIRONMENT, TAG: with_room(tag)},
            start_new_session=True,
        )
    assert process.stdin is not None, "asked for a pipe"
    with contextlib.suppress(BrokenPipeError):  # it has exited already
        process.stdin.write(json.dumps({"path": own_path(), "tag": tag, **config}).encode() + b"\n")
        process.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    return process
