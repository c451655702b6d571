"""JAX and TensorFlow begin with the threads of a device, when they begin in a run.

Both read the number once, when the first array is made, and no later setting changes it. So it is set before: JAX reads
a variable of the environment; TensorFlow is told when it is loaded, which may be in the run itself. An engine that has
begun before the run keeps its threads; a step of such a model then looks at them (`functional/checking.py`).
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...pool.late_imports import call_on_import

# Read by JAX's CPU client alone; NPROC, which it reads as well, is read by others too.
_OF_JAX = "PJRT_NPROC"

_asked: list[int] = []  # of the runs that are under way, the innermost last


def asked_threads() -> int | None:
    """Threads of a device of the run that is under way; None: there is none, or it takes the process as it stands."""
    return _asked[-1] if _asked else None


@contextmanager
def engines_begin_with(threads: int) -> Iterator[None]:
    """An engine that begins in this block begins with so many threads. The environment is as before after it."""
    before = os.environ.get(_OF_JAX)
    watcher = call_on_import({"tensorflow": lambda module: _tell(module, _asked[-1])})
    _asked.append(threads)
    try:
        change(threads)
        yield
    finally:
        _asked.pop()
        watcher.leave()
        if before is None:
            os.environ.pop(_OF_JAX, None)
        else:
            os.environ[_OF_JAX] = before


def change(threads: int) -> None:
    """The innermost run has another number of threads, that of its checkpoint."""
    if _asked:
        _asked[-1] = threads
        os.environ[_OF_JAX] = str(threads)
        if "tensorflow" in sys.modules:
            _tell(sys.modules["tensorflow"], threads)


def _tell(tensorflow: Any, threads: int) -> None:  # Any: the module
    with suppress(RuntimeError):  # it has begun with another number
        tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
        tensorflow.config.threading.set_inter_op_parallelism_threads(threads)
