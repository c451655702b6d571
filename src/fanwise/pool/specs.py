"""What is told to a worker process, and what it tells: plain frozen records that travel on links.

A worker process is started (forked from the warm process, or a spare), says `ready`, and runs one job, or one after
another when it is reused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

How = Literal["fork", "spare", "reuse", "simulated"]
EndKind = Literal["returned", "exception", "stopped"]

# What a worker exits with whose link has ended: told with the reason when it is the pool that still lives.
LINK_LOST = 252


@dataclass(frozen=True, slots=True)
class Packed:
    """A call ready to travel.

    Args:
        function: the pickled function.
        arguments: the pickled (args, kwargs).
        function_id: sha256 of `function` and `modules` in hex; who has unpacked a function of this id, and imported
            what it needs, need not do it again.
        name: what messages call the function.
        modules: what to import before it runs, also for functions and classes among its arguments; see
            `preload.modules_needed`.
    """

    function: bytes
    arguments: bytes
    function_id: str
    name: str
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Home:
    """Where a worker process reports to."""

    socket: str
    key: bytes


@dataclass(frozen=True, slots=True)
class RuntimeEnvironment:
    """The working folder (empty: gone), `sys.path`, and what is different in the environment (None: not set)."""

    folder: str
    path: tuple[str, ...]
    variables: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job, as its worker process gets it.

    Attributes:
        output: the path without ending: `.out` and `.err` are added.
        mps_variables: what a job that shares a GPU under MPS has in its environment.
    """

    job_id: int
    number: int
    attempt: int
    name: str
    seed: int
    function_id: str
    arguments: bytes
    cpus: int
    gpus: tuple[str, ...]
    gpu_fraction: float
    memory_bytes: int
    output: str
    reuse: bool
    runtime_environment: RuntimeEnvironment
    context: Mapping[str, object] | None
    mps_variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The process will not run the job: `why` is threads, cuda or stale; `culprit` the module or files behind it."""

    why: Literal["threads", "cuda", "stale"]
    culprit: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """What came of preparing a function: ready, or why not.

    Attributes:
        refusal: it was loaded, but this process cannot fork.
        error: it could not be loaded; the packed error.
        killed: somebody killed the process meanwhile, which says nothing about the function.
    """

    refusal: Refusal | None = None
    error: bytes | None = None
    killed: bool = False


@dataclass(frozen=True, slots=True)
class NestedJob:
    """A job that a job submits: the same as `Pool.submit`, already packed."""

    function: bytes
    function_id: str
    name: str
    modules: tuple[str, ...]
    arguments: bytes
    cpus: int
    gpus: float
    memory_bytes: int
    number: int | None
    runtime_environment: RuntimeEnvironment
