"""Random tensors of torch: exact ones over the memory of numpy's, native ones by a torch.Generator of the device."""

import torch

from ..adapters import Draw
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


def reordered(x: torch.Tensor, order: Array) -> torch.Tensor:
    return x[torch.from_numpy(order).to(x.device)]


def native_uniform(draw: Draw, low: float, high: float) -> torch.Tensor:
    return _empty(draw).uniform_(low, high, generator=_generator(draw))


def native_normal(draw: Draw, mean: float, std: float) -> torch.Tensor:
    return _empty(draw).normal_(mean, std, generator=_generator(draw))


def native_integers(draw: Draw, low: int, high: int) -> torch.Tensor:
    if high > 2**63 - 1:
        raise ValueError(f"torch's own generator draws below 2**63 - 1, got high={high}; leave native out")
    device = _device(draw)
    made = torch.randint(low, high, draw.shape, generator=_generator(draw), dtype=torch.int64, device=device)
    return made.to(getattr(torch, draw.dtype))


def native_bernoulli(draw: Draw, p: float) -> torch.Tensor:
    return _empty(draw).bernoulli_(p, generator=_generator(draw))


def native_permutation(draw: Draw, n: int) -> torch.Tensor:
    return torch.randperm(n, generator=_generator(draw), device=_device(draw))


def _empty(draw: Draw) -> torch.Tensor:
    return torch.empty(draw.shape, dtype=getattr(torch, draw.dtype), device=_device(draw))


def _generator(draw: Draw) -> torch.Generator:
    generator = torch.Generator(_device(draw))
    generator.manual_seed(draw.key.words[0])
    return generator


def _device(draw: Draw) -> torch.device:
    return torch.empty(()).device if draw.device is None else torch.device(draw.device)


def _placed(x: torch.Tensor, device: str | None) -> torch.Tensor:
    # from_numpy makes a tensor on the CPU, whatever torch.set_default_device says.
    if device is None:
        place = torch.empty(()).device  # ten times faster than torch.get_default_device
        return x if place.type == "cpu" else x.to(place)
    return x if device == "cpu" else x.to(device)
