"""What a run in several processes is told: by the caller to the supervisor, and by that to each rank."""

from dataclasses import dataclass

from torch import distributed

from ..config import Reduce
from ..shared_memory.memory import AllReduceKind


@dataclass(frozen=True, slots=True)
class Settings:
    """A run in processes.

    `devices`: names, for each process; a GPU is cuda:0 in its process. `on_loss`: "continue" or "stop".
    `gpus`: that each process leases. `called`: names of GPUs, by what CUDA_VISIBLE_DEVICES calls them.
    `step_timeout_s`: how long the others wait for a process. None: without a limit.
    `notice`: what is said on the screen, once.
    `all_reduce`: how gradients go through the shared memory; other than "auto" for tests.
    `spare_cpus`: that are leased for workers of each process that read data; None: there is no lease.
    """

    devices: tuple[tuple[str, ...], ...]
    shards: int
    threads: int = 1
    seed: int = 0
    fixed: frozenset[str] = frozenset()
    resume: str | None = None
    on_loss: str = "continue"
    step_timeout_s: float | None = None
    reduce: Reduce = "exact"
    progress: bool = False
    verify: int = 0
    notice: str = ""
    gpus: int | float = 0
    called: tuple[tuple[str, str], ...] = ()
    all_reduce: AllReduceKind = "auto"
    spare_cpus: int | None = None


def all_reduce_of(settings: Settings) -> AllReduceKind:
    """By a back end where sums need no order and each process has a whole GPU, which is what NCCL asks for."""
    is_part = any(visible.startswith("MIG") for visible, _ in settings.called)
    on_gpus = settings.devices[0][0].startswith("cuda") and settings.gpus == 1 and not is_part
    if settings.all_reduce == "auto" and settings.reduce == "fast" and on_gpus and distributed.is_nccl_available():
        return "back end"
    return settings.all_reduce
