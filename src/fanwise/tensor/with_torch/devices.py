"""Devices of torch: the CPU, and the accelerators of the one kind that this build and machine have."""

import torch

from ..placement import canonical


def names() -> list[str]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{number}" for number in range(torch.accelerator.device_count()))]


def device_of(x: torch.Tensor) -> str:
    return "cpu" if x.is_cpu else canonical(str(x.device))


def move(x: torch.Tensor, device: str) -> torch.Tensor:
    return x.to(device)
