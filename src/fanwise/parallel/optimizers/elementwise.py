"""Which optimizers treat every element by itself: a slice of a parameter is updated as the whole would be.

So their work can be divided among processes (`sharded.py`), and the result has the same bits.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.optim.optimizer as everywhere
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from ..validation.misuse import hooks

Group = Mapping[str, Any]  # Any: settings of an optimizer


def _sgd(group: Group) -> list[str]:
    return ["momentum_buffer"] if group["momentum"] else []


def _adam(group: Group) -> list[str]:
    return ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])


def _rmsprop(group: Group) -> list[str]:
    return ["square_avg"] + ["momentum_buffer"] * bool(group["momentum"]) + ["grad_avg"] * bool(group["centered"])


def _adagrad(group: Group) -> list[str]:
    return ["sum"]


# What each keeps for every element of a parameter. All but SGD also count their steps.
KEYS: dict[type[Optimizer], Callable[[Group], list[str]]] = {
    SGD: _sgd,
    Adam: _adam,
    AdamW: _adam,
    RMSprop: _rmsprop,
    Adagrad: _adagrad,
}
COUNTED = (Adam, AdamW, RMSprop, Adagrad)


def is_elementwise(optimizer: Optimizer, params: Sequence[nn.Parameter]) -> bool:
    """Whether it can be done in parts, and keeps something for every element."""
    keys = KEYS.get(type(optimizer))
    if keys is None or not all(param.is_floating_point() for param in params):
        return False
    plain = not any(group.get("capturable") or group.get("differentiable") for group in optimizer.param_groups)
    return plain and not is_watched(optimizer) and any(keys(group) for group in optimizer.param_groups)


def is_watched(optimizer: Optimizer) -> bool:
    """Whether somebody is told of its steps, and so is to see all gradients, once a step."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    of_all = len(everywhere._global_optimizer_pre_hooks) + len(everywhere._global_optimizer_post_hooks)
    return bool(own) or of_all > hooks()


def another(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> Optimizer:  # Any: settings, and parameters
    """One of the same kind and with the same defaults, for other tensors."""
    kind: Callable[..., Optimizer] = type(optimizer)
    taken = inspect.signature(kind.__init__).parameters
    return kind(list(groups), **{name: value for name, value in optimizer.defaults.items() if name in taken})
