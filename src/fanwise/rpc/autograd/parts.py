"""Gradients as they travel: dense tensors as they are, sparse ones as the dense tensors they are made of.

The codec of plain messages knows strided tensors only.
"""

from typing import NamedTuple

import torch

from ..messages.records import control_codec
from .functions import Grads


class Coordinates(NamedTuple):
    """A sparse tensor in coordinate form."""

    indices: torch.Tensor
    values: torch.Tensor
    shape: tuple[int, ...]
    coalesced: bool


control_codec.register(Coordinates, first_code=56)

Parts = tuple[torch.Tensor | Coordinates | None, ...]


def to_parts(grads: Grads) -> Parts:
    """For a message. A sparse gradient of another layout goes in coordinate form."""
    return tuple(None if grad is None else _to_part(grad.detach()) for grad in grads)


def from_parts(parts: Parts) -> Grads:
    """From a message."""
    return tuple(_from_part(part) if isinstance(part, Coordinates) else part for part in parts)


def _to_part(grad: torch.Tensor) -> torch.Tensor | Coordinates:
    if grad.layout is torch.strided:
        return grad
    coordinates = grad if grad.layout is torch.sparse_coo else grad.to_sparse_coo()  # type: ignore[no-untyped-call]  # torch's
    return Coordinates(
        coordinates._indices(), coordinates._values(), tuple(coordinates.shape), coordinates.is_coalesced()
    )


def _from_part(part: Coordinates) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        part.indices, part.values, part.shape, is_coalesced=part.coalesced, check_invariants=False
    )
