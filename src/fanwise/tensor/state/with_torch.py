"""Cells of torch: a tensor that wants no gradient, written to."""

from collections.abc import Callable
from typing import Any

import torch

from ..indexing import with_torch
from ..indexing.places import How

_WHOLE: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.Tensor.add_,
    "subtract": torch.Tensor.sub_,
    "multiply": torch.Tensor.mul_,
    "divide": torch.Tensor.div_,
}


def held(x: torch.Tensor, copy: bool) -> torch.Tensor:
    return x.detach().clone() if copy else x.detach()


def value(holder: torch.Tensor) -> torch.Tensor:
    return holder


def read(holder: torch.Tensor, index: Any) -> torch.Tensor:  # Any, here and below: an index or a value of `at`
    return with_torch.read(holder, index)


def write(holder: torch.Tensor, index: Any, value: Any, how: How) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        value = value.detach()
    if index is ... and how in _WHOLE:
        try:
            return _WHOLE[how](holder, value)
        except RuntimeError:
            pass  # it does not broadcast; what follows says so
    with_torch.write(holder, index, value, how)
    return holder
