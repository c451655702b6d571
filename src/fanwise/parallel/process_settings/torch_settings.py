"""What a program sets in its process before a run, and a result may depend on: read, carried, set, put back.

    caller: read_settings() --by value--> each process of the run: apply_settings(values), put back after

So a run in other processes finds what it would find in the caller's. What a training function sets for itself is its
own matter: it does so in every process, and when the run is over, everything is as it was before, on one device too.
What holds for a GPU besides is in cuda.py, and wins.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

TorchSettings = Mapping[str, Any]  # Any: plain values, by name


@dataclass(frozen=True, slots=True)
class _Switch:
    read: Callable[[], Any]  # Any: its plain value
    write: Callable[[Any], object]


def _autocast() -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def _set_autocast(value: tuple[bool, torch.dtype]) -> None:
    torch.set_autocast_enabled("cpu", value[0])
    torch.set_autocast_dtype("cpu", value[1])


def _flushes_denormals() -> bool:
    return bool((torch.tensor([1e-310], dtype=torch.float64) * 1 == 0).item())


def _set_arguments(value: list[str]) -> None:
    sys.argv[:] = value


_backends: Any = torch.backends  # Any: torch has not annotated them

_SWITCHES: dict[str, _Switch] = {
    "default dtype": _Switch(torch.get_default_dtype, torch.set_default_dtype),
    "precision of float32 products": _Switch(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic operators": _Switch(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "gradients": _Switch(torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast": _Switch(_autocast, _set_autocast),
    "detecting anomalies": _Switch(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "denormal numbers flushed": _Switch(_flushes_denormals, torch.set_flush_denormal),
    "oneDNN": _Switch(lambda: _backends.mkldnn.enabled, _backends.mkldnn.set_flags),
    "path of einsum": _Switch(
        lambda: _backends.opt_einsum.enabled, lambda value: setattr(_backends.opt_einsum, "enabled", value)
    ),
    "fast path of attention": _Switch(_backends.mha.get_fastpath_enabled, _backends.mha.set_fastpath_enabled),
    "flash attention": _Switch(_backends.cuda.flash_sdp_enabled, _backends.cuda.enable_flash_sdp),
    "memory-efficient attention": _Switch(
        _backends.cuda.mem_efficient_sdp_enabled, _backends.cuda.enable_mem_efficient_sdp
    ),
    "attention by single operators": _Switch(_backends.cuda.math_sdp_enabled, _backends.cuda.enable_math_sdp),
    "default device": _Switch(lambda: str(torch.get_default_device()), torch.set_default_device),
}
# What a program was called with is no matter of the result, but a training function may read it.
_ARGUMENTS = "sys.argv"


def read_settings() -> dict[str, Any]:  # Any: plain values
    """As this process is set now."""
    return {**_read(), _ARGUMENTS: list(sys.argv)}


def comparable_settings() -> dict[str, Any]:  # Any: plain values
    """Those that a result depends on."""
    return _read()


def _read() -> dict[str, Any]:  # Any: plain values
    values = {}
    for name, switch in _SWITCHES.items():
        try:
            values[name] = switch.read()
        except RuntimeError:
            continue  # the program has set a newer form of it, which torch does not tell in the older one
    return values


@contextmanager
def apply_settings(values: TorchSettings | None) -> Iterator[None]:
    """This process is set so in the block, or as it is if None; what was is put back."""
    before = read_settings()
    if values is not None:
        _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: TorchSettings) -> None:
    """Only what differs: to set the default device to what it is would slow down every operator."""
    now = read_settings()
    for name, value in values.items():
        if now.get(name) != value:
            write = _set_arguments if name == _ARGUMENTS else _SWITCHES[name].write
            write(value)
