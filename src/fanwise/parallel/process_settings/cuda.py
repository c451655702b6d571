"""What a run does on a CUDA device that it need not do on the CPU, as far as it concerns the process as a whole.

    workspace of cuBLAS     CUBLAS_WORKSPACE_CONFIG=:4096:8, unless the environment has the other value that repeats
    precision               torch's own defaults: products in float32, convolutions in TF32, cuDNN tries no others out
    current device          the run's
    random states           of all CUDA generators; they are for the block to set

A program may have set precision for itself, while the processes of a run start afresh; so that one GPU and several give
the same bits, every run begins with the defaults. A training function may set others: it runs in every process.

cuBLAS reads its variable once, at the first product. If a program has multiplied on the GPU before its first run, set
the variable in the environment before the program starts; else its own process may add in another order than others.
torch reads it at every product, with a regular expression: 0.05 to 0.13 ms each (2.11), which only small networks show.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")

# cuBLAS, "Results reproducibility": the two configurations with which products give the same bits each time.
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPEATING = (":4096:8", ":16:8")


@contextmanager
def as_in_every_process(device: torch.device) -> Iterator[None]:
    """In this block; what was is put back. Raises ValueError for a workspace with which results do not repeat."""
    with _workspace(), _precision(), torch.cuda.device(device):
        states = torch.cuda.get_rng_state_all()  # torch.manual_seed sets them all
        try:
            yield
        finally:
            torch.cuda.set_rng_state_all(states)


@contextmanager
def _workspace() -> Iterator[None]:
    """Looked up by torch at each product, and by cuBLAS at the first."""
    before = os.environ.get(WORKSPACE)
    if before is not None and before not in _REPEATING:
        raise ValueError(
            f"{WORKSPACE}={before!r}: matrix products on a GPU then give other bits each time.\n"
            f"Leave it unset, or set it to {_REPEATING[0]!r} before the program starts."
        )
    os.environ[WORKSPACE] = before or _REPEATING[0]
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(WORKSPACE, None)


@contextmanager
def _precision() -> Iterator[None]:
    """torch keeps these settings twice, in an older and a newer form, and refuses to read what differs."""
    cudnn: Any = torch.backends.cudnn  # Any: torch has annotated the older form only
    newer = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    values = [each.fp32_precision for each in newer]
    products, convolutions = _older(torch.get_float32_matmul_precision), _older(lambda: cudnn.allow_tf32)
    benchmark, cudnn.benchmark = cudnn.benchmark, False
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = True
    try:
        yield
    finally:
        cudnn.benchmark = benchmark
        if products is not None:
            torch.set_float32_matmul_precision(products)
        if convolutions is not None:
            cudnn.allow_tf32 = convolutions
        for each, value in zip(newer, values, strict=True):
            each.fp32_precision = value


def _older(setting: Callable[[], T]) -> T | None:
    """None: the program has set the newer form to something else, which then tells all."""
    try:
        return setting()
    except RuntimeError:
        return None
