"""Optimizers that treat every element by itself: updating a slice of a parameter gives the bits of a whole update."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.optim.optimizer as optimizer_module
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from ..validation.misuse import hooks

Group = Mapping[str, Any]  # settings of an optimizer


def _adam_keys(group: Group) -> list[str]:
    return ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])


def _rmsprop_keys(group: Group) -> list[str]:
    return ["square_avg"] + ["momentum_buffer"] * bool(group["momentum"]) + ["grad_avg"] * bool(group["centered"])


# The values that each keeps for every element of a parameter.
KEYS: dict[type[Optimizer], Callable[[Group], list[str]]] = {
    SGD: lambda group: ["momentum_buffer"] if group["momentum"] else [],
    Adam: _adam_keys,
    AdamW: _adam_keys,
    RMSprop: _rmsprop_keys,
    Adagrad: lambda group: ["sum"],
}
COUNTED = (Adam, AdamW, RMSprop, Adagrad)  # those that also count their updates


def is_elementwise(optimizer: Optimizer, params: Sequence[nn.Parameter]) -> bool:
    """Return True if the optimizer can be divided, and has state for every element."""
    keys = KEYS.get(type(optimizer))
    if keys is None or not all(param.is_floating_point() for param in params):
        return False
    is_plain = not any(group.get("capturable") or group.get("differentiable") for group in optimizer.param_groups)
    return is_plain and not has_hooks(optimizer) and any(keys(group) for group in optimizer.param_groups)


def has_hooks(optimizer: Optimizer) -> bool:
    """Return True if a hook of the program is called for each update, which must see all gradients."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    num_global = len(optimizer_module._global_optimizer_pre_hooks) + len(optimizer_module._global_optimizer_post_hooks)
    return bool(own) or num_global > hooks()


def make_like(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> Optimizer:
    """Return an optimizer of the same class, with the same defaults, for other parameters."""
    kind: Callable[..., Optimizer] = type(optimizer)
    accepted = inspect.signature(kind.__init__).parameters
    return kind(list(groups), **{name: value for name, value in optimizer.defaults.items() if name in accepted})
