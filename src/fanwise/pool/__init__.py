"""Worker processes on this machine or a cluster: devices, leases, warm processes, the tree of jobs, and their exits.

    pool, handles, settings       the public classes, and the validation of their arguments
    backend                       life of engine and processes, and which are kept for the next pool
    contract, engine, jobs        the interface of engines; the local engine
    devices, leases, mps          CPUs, GPUs and memory; leases on them; sharing a GPU
    workers, worker_set           processes that hold leases; their start
    interpreters, warm            warm processes, seen from the owner; the process itself
    worker, current, reporting    the worker; the job of this process; its metrics
    supervisor, processes         the processes that end all others; Linux process trees
    functions, modules            serialization of functions; the modules that they import

docs/design/pool.md shows the processes and their messages. The owner's modules are loaded on first use (PEP 562),
because workers do not need them.
"""

from typing import TYPE_CHECKING

from ..base.lazy_names import lazy_names
from .current import CurrentJob as CurrentJob
from .current import current as current
from .current import in_job as in_job

if TYPE_CHECKING:
    from .contract import Capacity as Capacity
    from .contract import Outcome as Outcome
    from .contract import Reply as Reply
    from .handles import JobHandle as JobHandle
    from .leases import Machine as Machine
    from .pool import Pool as Pool
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
