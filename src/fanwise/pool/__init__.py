"""The pool: what this machine has, leases on it, warm processes, the tree of jobs, and their death.

    devices, leases (quiet)      what there is, and who holds it
    functions, preload, seeds    what travels to a worker, what it will import, and what its chance begins with
    surroundings, sources        where a job runs, and whether its code is still what it was
    launching, processes         fresh interpreters; what the operating system offers against orphans
    guard, keeper, warm, worker  the mains of the processes below a pool
    children, stopper            what a child leaves behind is ended; how a job is told to end
    interpreters, crew           our processes seen from the owner; which of them runs which job
    engine, jobs, workers        from submit to its end; backlog and tree (quiet) are two of its books
    current                      the job that this process runs
    pool, handles                what users see; lifetime: what of it begins and ends in their process
    settings (quiet)             what they may set, checked

Which process starts which, and what each tells the others, is drawn in docs/design/main-job.md.
"""

from .current import CurrentJob as CurrentJob
from .current import current as current
from .current import in_job as in_job
from .handles import JobHandle as JobHandle
from .leases import Machine as Machine
from .leases import Need as Need
from .outcomes import Outcome as Outcome
from .pool import Needs as Needs
from .pool import Pool as Pool
from .pool import PoolStats as PoolStats
