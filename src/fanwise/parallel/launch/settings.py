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
    """Settings of a run in several processes. Fields without a comment are arguments of `fanwise.run`."""

    devices: tuple[str, ...]  # names for messages, one for each process. A GPU is cuda:0 in its process
    shards: int
    threads: int = 1
    seed: int = 0
    explicit_settings: frozenset[str] = frozenset()  # those that the caller passed, among shards, threads and seed
    resume: str | None = None
    backend: Backend = "shared memory"  # how the processes exchange gradients
    on_loss: str = "continue"
    step_timeout_s: float | None = None
    reduce: Reduce = "exact"
    verify: int = 0
    gpus: int | float = 0  # number of GPUs that each process leases
    gpu_names: tuple[tuple[str, str], ...] = ()  # (name in CUDA_VISIBLE_DEVICES, name for messages) of each GPU
    all_reduce: AllReduceKind = "auto"  # transport of the shared memory, which tests choose
    is_restart: bool = False  # an earlier attempt of the run has ended by a loss
    reports_made: int = 0  # by earlier attempts, which are not repeated

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
