"""The pool: what this machine has, leases on it, warm processes, the tree of jobs, and their death.

    contract (quiet)             what the layers above ask of an engine, and what they hear of it
    devices, leases (quiet)      what there is, and who holds it
    functions, preload, seeds    what travels to a worker, what it will import, and what its chance begins with
    runtime_environment          where a job runs; sources: whether its code is still what it was
    launching, marks, processes  a fresh interpreter; what the operating system offers against orphans
    guard, supervisor            the mains of the processes below a pool, with `warm` and `worker`
    children, threads            what a job leaves behind is ended, or told by name
    stopper                      how a job is told to end
    interpreters, worker_set     our processes seen from the owner; which of them runs which job
    engine, jobs, leased_workers from submit to its end; backlog and tree (quiet) are two of its books
    current                      the job that this process runs
    launchers (quiet)            which process this is of several that torchrun, SLURM or MPI have started; launched
    pool, handles                what users see; lifetime: what of it begins and ends in their process
    backend                      hub thread and processes of a pool, which are kept for the next one
    settings (quiet)             what they may set, checked

Which process starts which, and what each tells the others, is drawn in docs/design/main-job.md. The owner's side loads
on first use (PEP 562): the processes below a pool start without.
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
    from .launched import from_environment as from_environment
    from .launchers import LaunchedProcess as LaunchedProcess
    from .leases import Machine as Machine
    from .leases import Resources as Resources
    from .pool import Pool as Pool
    from .pool import PoolStats as PoolStats
    from .pool import Submitter as Submitter
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
