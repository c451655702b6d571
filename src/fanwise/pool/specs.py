"""Messages between a pool and its worker processes: frozen records that are sent over links."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .leases import NO_LEASE, Lease, Resources

How = Literal["fork", "spare", "reuse", "simulated"]
EndKind = Literal["returned", "exception", "stopped"]

# Exit code of a worker whose link has ended.
LINK_LOST = 252


@dataclass(frozen=True, slots=True)
class Packed:
    """A serialized call.

    Args:
        function: the pickled function.
        arguments: the pickled (args, kwargs).
        function_id: sha256 of `function` and `modules` in hex, the key of the caches of loaded functions.
        name: name of the function in messages.
        modules: modules to import before it runs, also for functions and classes among its arguments; see
            `modules.modules_needed`.
    """

    function: bytes
    arguments: bytes
    function_id: str
    name: str
    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RuntimeEnvironment:
    """Environment of a job.

    Attributes:
        folder: the working folder; empty if it was deleted.
        path: `sys.path`.
        variables: differences from the environment of the pool's processes. None unsets a variable.
    """

    folder: str
    path: tuple[str, ...]
    variables: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job, as its worker process receives it.

    Attributes:
        output: path of its output files without the extensions `.out` and `.err`.
        lease: set when the job starts.
        mps_variables: environment variables of a job that shares a GPU under MPS.
    """

    job_id: int
    number: int
    attempt: int
    name: str
    seed: int
    function_id: str
    arguments: bytes
    output: str
    reuse: bool
    runtime_environment: RuntimeEnvironment
    context: Mapping[str, object] | None
    lease: Lease = NO_LEASE
    mps_variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A process cannot run a job.

    Attributes:
        why: it has several threads or a CUDA context and cannot be forked, or its source files are out of date.
        culprit: the module or files that caused this.
    """

    why: Literal["threads", "cuda", "stale"]
    culprit: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result of loading a function.

    Attributes:
        refusal: the function was loaded, but the process cannot be forked.
        error: packed error if the function could not be loaded.
        killed: the process was killed meanwhile, so the error says nothing about the function.
    """

    refusal: Refusal | None = None
    error: bytes | None = None
    killed: bool = False


@dataclass(frozen=True, slots=True)
class NestedJob:
    """A job that another job submits. `nested_id`: the submitter's number for it."""

    nested_id: int
    packed: Packed
    resources: Resources
    number: int | None
    runtime_environment: RuntimeEnvironment
