"""Random tensors of torch, over the memory of numpy's arrays."""

import torch

from ..random.exact import Array


def default_integer() -> str:
    return "int64"


def check_dtype(name: str) -> None:
    """torch has them all."""


def adopt(made: Array, device: str | None) -> torch.Tensor:
    if made.dtype.name == "bfloat16":
        x = torch.from_numpy(made.view("int16")).view(torch.bfloat16)
    else:
        x = torch.from_numpy(made)
    return _placed(x, device)


def _placed(x: torch.Tensor, device: str | None) -> torch.Tensor:
    # from_numpy makes a tensor on the CPU, whatever torch.set_default_device says.
    if device is None:
        place = torch.empty(()).device  # ten times faster than torch.get_default_device
        return x if place.type == "cpu" else x.to(place)
    return x if device == "cpu" else x.to(device)
