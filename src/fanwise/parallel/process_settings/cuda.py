"""Settings for a run on a CUDA device.

    cuBLAS workspace     CUBLAS_WORKSPACE_CONFIG=:4096:8, unless it has the other deterministic value
    precision            torch's defaults: matrix products in float32, convolutions in TF32, no cuDNN benchmarks
    current device       the device of the run
    random states        of all CUDA generators, which are restored afterwards

Every run starts with the default precision, because new processes of a run do: one and several GPUs then give the same
bits. A training function may change the precision, because it runs in every process.

cuBLAS reads its variable once, at the first product. A program that multiplies on the GPU before its first run must set
the variable before it starts. torch parses the variable at every product, which takes 0.05 to 0.13 ms (torch 2.11).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_DETERMINISTIC = (":4096:8", ":16:8")  # see "Results reproducibility" in the manual of cuBLAS


@contextmanager
def cuda_environment(device: torch.device) -> Iterator[None]:
    """Apply the settings in this block. Raises ValueError for a nondeterministic workspace."""
    with _workspace(), _precision(), torch.cuda.device(device):
        states = torch.cuda.get_rng_state_all()  # torch.manual_seed sets them all
        try:
            yield
        finally:
            torch.cuda.set_rng_state_all(states)


@contextmanager
def _workspace() -> Iterator[None]:
    before = os.environ.get(WORKSPACE)
    if before is not None and before not in _DETERMINISTIC:
        raise ValueError(
            f"{WORKSPACE}={before!r} makes matrix products on a GPU nondeterministic.\n"
            f"Leave it unset, or set it to {_DETERMINISTIC[0]!r} before the program starts."
        )
    os.environ[WORKSPACE] = before or _DETERMINISTIC[0]
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(WORKSPACE, None)


@contextmanager
def _precision() -> Iterator[None]:
    # torch has an older and a newer form of these settings, and refuses to read an older one that differs.
    cudnn: Any = torch.backends.cudnn
    newer = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    values = [setting.fp32_precision for setting in newer]
    matmul_precision, allow_tf32 = _read(torch.get_float32_matmul_precision), _read(lambda: cudnn.allow_tf32)
    benchmark, cudnn.benchmark = cudnn.benchmark, False
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = True
    try:
        yield
    finally:
        cudnn.benchmark = benchmark
        if matmul_precision is not None:
            torch.set_float32_matmul_precision(matmul_precision)
        if allow_tf32 is not None:
            cudnn.allow_tf32 = allow_tf32
        for setting, value in zip(newer, values, strict=True):
            setting.fp32_precision = value


def _read(getter: Callable[[], T]) -> T | None:
    """Return an older setting. None: the program has set the newer form."""
    try:
        return getter()
    except RuntimeError:
        return None
