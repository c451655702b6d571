"""`Settings` of a run in several processes. The supervisor passes them to all ranks."""

from dataclasses import dataclass
from typing import Literal

from torch import distributed

from ..comm.shared_memory import AllReduceKind
from ..comm.torch_group import TorchBackend
from ..config import Reduce

Backend = TorchBackend | Literal["shared memory"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run in several processes. Fields without a description are arguments of `fanwise.run`.

    Attributes:
        devices: names of the devices, for messages: one for each process. A GPU is cuda:0 in its process.
        fixed: names of the arguments shards, threads and seed that the user has given.
        backend: how the processes exchange gradients.
        gpus: number of GPUs that each process leases.
        gpu_names: (name in CUDA_VISIBLE_DEVICES, name for messages) of each GPU.
        all_reduce: tests set this to choose the transport of the shared memory.
        is_restart: an earlier attempt of the run has ended by a loss.
        reports_made: number of reports by earlier attempts, which are not repeated.
    """

    devices: tuple[str, ...]
    shards: int
    threads: int = 1
    seed: int = 0
    fixed: frozenset[str] = frozenset()
    resume: str | None = None
    backend: Backend = "shared memory"
    on_loss: str = "continue"
    step_timeout_s: float | None = None
    reduce: Reduce = "exact"
    verify: int = 0
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
    has_partial_gpu = any(visible.startswith("MIG") for visible, _ in gpu_names)  # NCCL supports only whole GPUs
    return "nccl" if distributed.is_nccl_available() and not has_partial_gpu else "gloo"
