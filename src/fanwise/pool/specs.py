"""What is told to a worker process, and what it tells: plain frozen records that travel on links.

A worker process is started (forked from the warm process, or a spare), says hello, and runs one job, or one after
another when it is reused.
"""

from dataclasses import dataclass
from typing import Literal

How = Literal["fork", "spare", "reuse"]
OutcomeKind = Literal["returned", "exception", "stopped"]


@dataclass(frozen=True, slots=True)
class Home:
    """Where a worker process reports to."""

    socket: str
    key: bytes


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job, as its worker process gets it. `output` is the path without ending: `.out` and `.err` are added."""

    job_id: int
    number: int
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """The warm process will not fork: `why` is threads, cuda or stale; `culprit` the module or files behind it."""

    why: Literal["threads", "cuda", "stale"]
    culprit: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """What came of preparing a function: it can be forked, or not (`refusal`), or could not be loaded (`error`)."""

    refusal: Refusal | None = None
    error: bytes | None = None


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
