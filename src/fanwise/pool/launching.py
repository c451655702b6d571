"""Starting a freshly executed interpreter that runs one of our mains: keeper, warm process, spare.

The child gets one line of JSON on its standard input: which main, our `sys.path`, and what that main needs, the
key of the pool among it; nothing secret is on a command line or in the environment. Numeric libraries are held to
one thread from the start: importing numpy alone starts OpenBLAS threads otherwise, and a process with threads
cannot be forked safely.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .pages import with_tunables

_BOOT = (
    "import json, sys; c = json.loads(sys.stdin.buffer.readline()); sys.path[:] = c['path']; "
    "import importlib; importlib.import_module(c['main']).main(c)"
)

# One OS thread until a lease says otherwise; and torch must ask NVML, not CUDA, whether there is a GPU, because a
# process with a CUDA context cannot be forked.
_QUIET_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}

Config = dict[str, Any]  # Any: JSON


def launch(main: str, config: Mapping[str, object], *, log: Path) -> "subprocess.Popen[bytes]":
    """Start `python` with `main` (a module of ours that has a function main(config)); its output goes to `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=with_tunables({**os.environ, **_QUIET_ENVIRONMENT}),
            start_new_session=True,
        )
    assert process.stdin is not None, "asked for a pipe"
    with process.stdin:
        process.stdin.write(json.dumps({"path": sys.path, **config, "main": main}).encode() + b"\n")
    return process
