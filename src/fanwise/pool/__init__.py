"""Worker processes on this machine or a cluster: devices, leases, warm processes, the tree of jobs, and their exits.

    pool, handles                the public classes; settings validates their arguments
    lifetime, backend            when engine and processes start and end, and which are kept for the next pool
    contract                     the interface of engines, for the layers above and their simulations
    engine, jobs, workers, tree  the local engine: queue, running jobs, leased worker processes, jobs of jobs
    devices, leases, mps         CPUs, GPUs and memory; leases on them; sharing a GPU
    gpu_release                  waits for the memory of a dead process
    worker_set, interpreters     start processes for jobs; warm processes and spares, seen from the owner
    launching, supervisor        start of the first process; the processes that end all others
    processes, children, pages   functions of Linux for process trees and huge pages
    warm, worker, leftovers      the process that forks workers; the worker; leftovers of a function
    current, stop_signal         the job of this process; stop requests to it
    reporting, seeds             metrics from a job; its random seeds
    functions, sendable          serialization of functions and arguments
    preload, sources             modules that a function will import; source files that have changed
    runtime_environment          folder, `sys.path` and variables of a job; late_imports: hooks on imports
    outcomes, output, specs      reasons of failures; the end of a job's output; messages to workers

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
