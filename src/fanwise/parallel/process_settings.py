"""The environment of a run in its process, which is restored after the run.

threads, random states, deterministic operators    `run_environment`
freed memory                                       stays with the process
settings of torch that the program has made        are applied in every process of the run
CUDA                                               cuBLAS workspace, precision, current device, random states

With reduce="exact" torch uses deterministic operators, and an operator that has none raises. torch's option to fill
the memory of `torch.empty` is switched off, because it slows down every operator. With reduce="fast" operators are
chosen as the program has set it.
"""

import ctypes
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
import torch.utils.deterministic

from ..pool.late_imports import around_imports
from .rng import restored_streams

T = TypeVar("T")

TorchSettings = Mapping[str, Any]  # plain values, by name

_backends: Any = torch.backends  # Any: parts of them have no annotations
_deterministic: Any = torch.utils.deterministic


@contextmanager
def _restore_streams_after_imports() -> Iterator[None]:
    """Ignore random numbers that libraries draw when they are imported, because other processes have imported them."""
    watcher = around_imports(restored_streams)
    try:
        yield
    finally:
        watcher.leave()


@contextmanager
def run_environment(
    threads: int, device: torch.device, *, exact: bool = True, settings: TorchSettings | None = None
) -> Iterator[None]:
    """Prepare the process for a run in this block, and restore it afterwards, with its random states.

    Args:
        settings: settings of the process that started the run, if it is another one.

    Raises:
        ValueError: an environment variable makes matrix products on this GPU nondeterministic.
    """
    threads_before, torch_before = torch.get_num_threads(), torch.get_rng_state()
    python_before, numpy_before = random.getstate(), np.random.get_state()
    mode_before = torch.get_deterministic_debug_mode()
    filled = _deterministic.fill_uninitialized_memory
    with (
        apply_settings(settings),
        keep_freed_memory(),
        _restore_streams_after_imports(),
        cuda_environment(device) if device.type == "cuda" else nullcontext(),
    ):
        torch.set_num_threads(threads)
        if exact:
            # Like use_deterministic_algorithms(True), which imports the compiler.
            torch.set_deterministic_debug_mode("error")
        _deterministic.fill_uninitialized_memory = False
        try:
            yield
        finally:
            _deterministic.fill_uninitialized_memory = filled
            torch.set_deterministic_debug_mode(mode_before)
            torch.set_num_threads(threads_before)
            torch.set_rng_state(torch_before)
            random.setstate(python_before)
            np.random.set_state(numpy_before)


# -- settings of torch ---------------------------------------------------------------------------------------------
# They are read in the process that starts the run. Settings that the training function makes are reverted when the run
# ends. On a GPU, `cuda_environment` overrides some of them.


def _get_autocast() -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def _set_autocast(value: tuple[bool, torch.dtype]) -> None:
    torch.set_autocast_enabled("cpu", value[0])
    torch.set_autocast_dtype("cpu", value[1])


def _flushes_denormals() -> bool:
    return bool((torch.tensor([1e-310], dtype=torch.float64) * 1 == 0).item())


def _set_arguments(value: list[str]) -> None:
    sys.argv[:] = value


_ACCESSORS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {  # getter, setter
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "precision of float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic operators": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast": (_get_autocast, _set_autocast),
    "detecting anomalies": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "denormal numbers flushed": (_flushes_denormals, torch.set_flush_denormal),
    "oneDNN": (lambda: _backends.mkldnn.enabled, _backends.mkldnn.set_flags),
    "path of einsum": (
        lambda: _backends.opt_einsum.enabled,
        lambda value: setattr(_backends.opt_einsum, "enabled", value),
    ),
    "fast path of attention": (_backends.mha.get_fastpath_enabled, _backends.mha.set_fastpath_enabled),
    "flash attention": (_backends.cuda.flash_sdp_enabled, _backends.cuda.enable_flash_sdp),
    "memory-efficient attention": (_backends.cuda.mem_efficient_sdp_enabled, _backends.cuda.enable_mem_efficient_sdp),
    "attention by single operators": (_backends.cuda.math_sdp_enabled, _backends.cuda.enable_math_sdp),
    "default device": (lambda: str(torch.get_default_device()), torch.set_default_device),
}
# The result does not depend on it, but a training function may read it.
_ARGUMENTS = "sys.argv"


def read_settings() -> dict[str, Any]:
    """Return the settings of this process, and its arguments."""
    return {**comparable_settings(), _ARGUMENTS: list(sys.argv)}


def comparable_settings() -> dict[str, Any]:
    """Return the settings that must be equal in all processes of a run."""
    values = {}
    for name, (read, _) in _ACCESSORS.items():
        try:
            values[name] = read()
        except RuntimeError:
            continue  # the program has used the newer form of the setting, which the older getter refuses
    return values


@contextmanager
def apply_settings(settings: TorchSettings | None) -> Iterator[None]:
    """Apply the settings in this block. None: keep those of this process. The settings before it are restored."""
    before = read_settings()
    if settings is not None:
        _apply(settings)
    try:
        yield
    finally:
        _apply(before)


def _apply(settings: TorchSettings) -> None:
    # Unchanged settings are skipped: setting the default device, even to the same one, slows down every operator.
    current = read_settings()
    for name, value in settings.items():
        if current.get(name) != value:
            write = _set_arguments if name == _ARGUMENTS else _ACCESSORS[name][1]
            write(value)


# -- freed memory --------------------------------------------------------------------------------------------------
# glibc returns blocks above 32 MiB to the system at once. If gradients are such blocks, every step has page faults: 10
# to 15 % of the time of a step with 35 MB in one block (measured). After the last run, free memory is returned.

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MAX_KEPT_BYTES = 1 << 30
_GLIBC_MAX_BYTES = 1 << 25  # DEFAULT_MMAP_THRESHOLD_MAX, up to which glibc adjusts its threshold by itself
_VARIABLES = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"}
_TUNABLES = ("glibc.malloc.mmap", "glibc.malloc.trim", "glibc.malloc.top_pad")

_lock = threading.Lock()
_num_runs = 0


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Take blocks below 1 GiB from the heap in this block, and do not shrink the heap.

    Does nothing if the environment sets these limits, or if the C library has none.
    """
    global _num_runs
    library = ctypes.CDLL(None)
    is_set_by_user = bool(_VARIABLES & os.environ.keys()) or any(
        name in os.environ.get("GLIBC_TUNABLES", "") for name in _TUNABLES
    )
    if is_set_by_user or not all(hasattr(library, name) for name in ("mallopt", "malloc_trim")):
        yield
        return
    with _lock:
        _num_runs += 1
        if _num_runs == 1:
            _set_thresholds(library, _MAX_KEPT_BYTES, _MAX_KEPT_BYTES)
    try:
        yield
    finally:
        with _lock:
            _num_runs -= 1
            if _num_runs == 0:
                _set_thresholds(library, _GLIBC_MAX_BYTES, 2 * _GLIBC_MAX_BYTES)
                library.malloc_trim(0)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # the lock may be held by a thread that the child does not have


os.register_at_fork(after_in_child=_after_fork_in_child)


def _set_thresholds(library: ctypes.CDLL, mmap_bytes: int, trim_bytes: int) -> None:
    library.mallopt(_MMAP_THRESHOLD, mmap_bytes)
    library.mallopt(_TRIM_THRESHOLD, trim_bytes)


# -- CUDA ----------------------------------------------------------------------------------------------------------
# Every run starts with the default precision, because new processes of a run do: one and several GPUs then give the
# same bits. A training function may change the precision, because it runs in every process.
#
# cuBLAS reads its variable once, at the first product. A program that multiplies on the GPU before its first run must
# set the variable before it starts. torch parses the variable at every product, which takes 0.05 to 0.13 ms.

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
