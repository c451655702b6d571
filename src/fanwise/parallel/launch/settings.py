"""Settings of a run in several processes, for its supervisor and for each rank."""

from dataclasses import dataclass
from typing import Literal

from torch import distributed

from ..comm.shared_memory import AllReduceKind
from ..comm.torch_group import TorchBackend
from ..config import Reduce

Backend = TorchBackend | Literal["shared memory"]


@dataclass(frozen=True, slots=True)
class Settings:
    """A run in several processes.

    Attributes:
        devices: names of the devices of each process, for people. A GPU is cuda:0 in its process.
        backend: how the processes exchange gradients.
        on_loss: "continue" or "stop"; only shared memory can continue.
        step_timeout_s: how long the others wait for a process. None: without a limit.
        notice: shown once on the screen.
        gpus: how many each process leases. gpu_names: names for people, by what CUDA_VISIBLE_DEVICES calls them.
        all_reduce: how gradients go through shared memory; other than "auto" in tests.
        is_restart: an earlier attempt was ended by a loss. reports_made: by earlier attempts; they are not repeated.
    """

    devices: tuple[tuple[str, ...], ...]
    shards: int
    threads: int = 1
    seed: int = 0
    fixed: frozenset[str] = frozenset()
    resume: str | None = None
    backend: Backend = "shared memory"
    on_loss: str = "continue"
    step_timeout_s: float | None = None
    reduce: Reduce = "exact"
    progress: bool = False
    verify: int = 0
    notice: str = ""
    gpus: int | float = 0
    gpu_names: tuple[tuple[str, str], ...] = ()
    all_reduce: AllReduceKind = "auto"
    is_restart: bool = False
    reports_made: int = 0

    @property
    def survives_losses(self) -> bool:
        """True if the other processes continue after a loss."""
        return self.backend == "shared memory" and self.on_loss == "continue"


def default_backend(device_type: str, processes: int, gpu_names: tuple[tuple[str, str], ...] = ()) -> Backend:
    """Return how processes of one machine exchange gradients."""
    if device_type != "cuda" or processes == 1:
        return "shared memory"
    is_part = any(visible.startswith("MIG") for visible, _ in gpu_names)  # NCCL needs whole GPUs
    return "nccl" if distributed.is_nccl_available() and not is_part else "gloo"
