"""The state of a process during a run, which is restored afterwards.

threads, random states, deterministic operators     set for the run
settings of torch that the program has made         applied in every process of the run
CUDA                                                cuBLAS workspace, precision, current device, random states
freed memory                                        stays with the process

A run with reduce="exact" uses deterministic operators, and an operator without a deterministic implementation raises. A
run with reduce="fast" leaves the choice to the program. torch's option to fill the memory of `torch.empty` is off,
because it slows down every operator.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
import torch.utils.deterministic

from ..pool.late_imports import around_imports
from .rng import preserved_cpu_generators

T = TypeVar("T")

TorchSettings = Mapping[str, Any]  # plain values, by name

_backends: Any = torch.backends  # parts of it have no annotations
_deterministic: Any = torch.utils.deterministic


@contextmanager
def run_environment(
    threads: int, device: torch.device, *, exact: bool = True, settings: TorchSettings | None = None
) -> Iterator[None]:
    """Prepare this process for a run in the block, and restore its state afterwards.

    `exact`: use deterministic operators. `settings`: those of the process that has started the run, if it is another.
    """
    threads_before, filled_before = torch.get_num_threads(), _deterministic.fill_uninitialized_memory
    with (
        apply_settings(settings),
        keep_freed_memory(),
        preserved_cpu_generators(),
        _cuda_environment(device) if device.type == "cuda" else nullcontext(),
        ExitStack() as stack,
    ):
        # Libraries may draw random numbers when they are imported, and other processes may have imported them before.
        stack.callback(around_imports(preserved_cpu_generators).leave)
        torch.set_num_threads(threads)
        if exact:
            torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import the compiler
        _deterministic.fill_uninitialized_memory = False
        try:
            yield
        finally:
            _deterministic.fill_uninitialized_memory = filled_before
            torch.set_num_threads(threads_before)


# -- settings of torch ---------------------------------------------------------------------------------------------


def _get_autocast() -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def _set_autocast(value: tuple[bool, torch.dtype]) -> None:
    torch.set_autocast_enabled("cpu", value[0])
    torch.set_autocast_dtype("cpu", value[1])


def _flushes_denormals() -> bool:
    return bool((torch.tensor([1e-310], dtype=torch.float64) * 1 == 0).item())


_ACCESSORS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {  # getter, setter
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "precision of float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic operators": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast": (_get_autocast, _set_autocast),
    "detecting anomalies": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "denormal numbers flushed": (_flushes_denormals, torch.set_flush_denormal),
    "oneDNN": (lambda: _backends.mkldnn.enabled, _backends.mkldnn.set_flags),
    "path of einsum": (lambda: _backends.opt_einsum.enabled, partial(setattr, _backends.opt_einsum, "enabled")),
    "fast path of attention": (_backends.mha.get_fastpath_enabled, _backends.mha.set_fastpath_enabled),
    "flash attention": (_backends.cuda.flash_sdp_enabled, _backends.cuda.enable_flash_sdp),
    "memory-efficient attention": (_backends.cuda.mem_efficient_sdp_enabled, _backends.cuda.enable_mem_efficient_sdp),
    "attention by single operators": (_backends.cuda.math_sdp_enabled, _backends.cuda.enable_math_sdp),
    "default device": (lambda: str(torch.get_default_device()), torch.set_default_device),
}
# A training function may read the arguments, but they may differ between processes.
_ARGUMENTS = "sys.argv"


def read_settings() -> dict[str, Any]:
    """Return the settings of torch in this process, and `sys.argv`."""
    return {**comparable_settings(), _ARGUMENTS: list(sys.argv)}


def comparable_settings() -> dict[str, Any]:
    """Return the settings that must be equal in all processes of a run."""
    values = {}
    for name, (read, _) in _ACCESSORS.items():
        try:
            values[name] = read()
        except RuntimeError:
            continue  # the program has used a newer form of the setting, and the older getter then raises
    return values


@contextmanager
def apply_settings(settings: TorchSettings | None) -> Iterator[None]:
    """Apply the settings in this block, unless they are None. At its end, restore those of before in any case."""
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
            write = partial(sys.argv.__setitem__, slice(None)) if name == _ARGUMENTS else _ACCESSORS[name][1]
            write(value)


# -- freed memory --------------------------------------------------------------------------------------------------
# glibc returns blocks above 32 MiB to the system at once. If gradients are such blocks, every step has page faults: 10
# to 15 % of the time of a step with 35 MB in one block (measured).

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MAX_KEPT_BYTES = 1 << 30
_GLIBC_MAX_BYTES = 1 << 25  # DEFAULT_MMAP_THRESHOLD_MAX
_VARIABLES = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"}
_TUNABLES = ("glibc.malloc.mmap", "glibc.malloc.trim", "glibc.malloc.top_pad")

_lock = threading.Lock()
_num_runs = 0


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory up to 1 GiB for later allocations in this block. Return it after the last run of the process.

    Does nothing if the environment sets these limits, or without glibc.
    """
    global _num_runs
    library = ctypes.CDLL(None)
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    is_set_by_user = bool(_VARIABLES & os.environ.keys()) or any(name in tunables for name in _TUNABLES)
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
    _lock = threading.Lock()  # a thread that does not exist in the child may hold the old one


os.register_at_fork(after_in_child=_after_fork_in_child)


def _set_thresholds(library: ctypes.CDLL, mmap_bytes: int, trim_bytes: int) -> None:
    library.mallopt(_MMAP_THRESHOLD, mmap_bytes)
    library.mallopt(_TRIM_THRESHOLD, trim_bytes)


# Every run starts with the default precision, as a new process does, so that one and several GPUs give the same bits. A
# training function may change the precision, because it runs in every process.

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_DETERMINISTIC = (":4096:8", ":16:8")  # see "Results reproducibility" in the manual of cuBLAS


@contextmanager
def _cuda_environment(device: torch.device) -> Iterator[None]:
    with _workspace(), _precision(), torch.cuda.device(device):
        states = torch.cuda.get_rng_state_all()  # torch.manual_seed changes all of them
        try:
            yield
        finally:
            torch.cuda.set_rng_state_all(states)


@contextmanager
def _workspace() -> Iterator[None]:
    # cuBLAS reads the variable at the first product of the process. If that is before the run, the program must set it.
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
    # torch has an older and a newer form of these settings. If the program has used the newer one, older getters raise.
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
    try:
        return getter()
    except RuntimeError:
        return None
