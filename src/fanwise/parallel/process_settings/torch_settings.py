"""Settings of torch that a program has made before a run and that affect its result.

They are read in the process that starts the run, and applied in every process of the run. Settings that the training
function makes are reverted when the run ends. On a GPU, cuda.py overrides some of them.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

TorchSettings = Mapping[str, Any]  # plain values, by name


def _get_autocast() -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def _set_autocast(value: tuple[bool, torch.dtype]) -> None:
    torch.set_autocast_enabled("cpu", value[0])
    torch.set_autocast_dtype("cpu", value[1])


def _flushes_denormals() -> bool:
    return bool((torch.tensor([1e-310], dtype=torch.float64) * 1 == 0).item())


def _set_arguments(value: list[str]) -> None:
    sys.argv[:] = value


_backends: Any = torch.backends

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
