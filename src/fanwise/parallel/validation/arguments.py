"""Checks of models, optimizers and options before the first step. Errors name the offending argument."""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import SupportsIndex

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ...base.nearest import did_you_mean

# Names of classes that spread a model or an optimizer over processes.
_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "ShardedDataParallel"}
_WRAPPERS |= {"DeepSpeedEngine", "PipelineModule"}
_SHARDED_OPTIMIZERS = {"ZeroRedundancyOptimizer", "DistributedOptimizer", "OSS", "DeepSpeedZeroOptimizer"}


def check_model(model: nn.Module, device: torch.device) -> None:
    """Raise TypeError for anything but a module; ValueError for a wrapper, or a tensor on another device."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        wrapper = next((each.__name__ for each in type(module).__mro__ if each.__name__ in _WRAPPERS), None)
        if wrapper is not None:
            raise ValueError(
                f"the model is wrapped in {wrapper}, which would spread the work a second time.\n"
                f"  wrong:  run.step({wrapper}(model), ...)\n  right:  run.step(model, ...)"
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "DTensor" in (type(tensor).__name__, type(tensor.data).__name__):
            raise ValueError(
                f"{name!r} of the model is a DTensor, whose parts are in several processes; a run needs whole "
                f"parameters.\n  wrong:  run.step(fully_shard(model), ...)\n  right:  run.step(model, ...)"
            )
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ValueError(f"{name!r} of the model has no shape yet; call the model once with a batch, then run.step")
        if tensor.device != device:
            raise ValueError(
                f"{name!r} of the model is on {tensor.device}, and this run's device is {device}.\n"
                f"Write model.to(run.device), before the optimizer is made."
            )


def check_optimizer(
    optimizer: torch.optim.Optimizer, params: Sequence[nn.Parameter], *, has_closure: bool = False
) -> None:
    """Raise TypeError for anything but an optimizer; ValueError if it holds other parameters than these.

    Args:
        has_closure: allow an optimizer that calls the loss itself.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"the optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if type(optimizer).__name__ in _SHARDED_OPTIMIZERS:
        raise ValueError(
            f"{type(optimizer).__name__} spreads its state over its own process group. A run spreads the state of "
            f"torch.optim.Adam and other optimizers over its processes by itself: give that optimizer."
        )
    if isinstance(optimizer, torch.optim.LBFGS) and not has_closure:
        raise ValueError(
            "LBFGS calls the loss several times an update, and run.step(model, optimizer, loss_fn) calls it once.\n"
            "  wrong:  step = run.step(model, optimizer, loss_fn); step(batch)\n"
            "  right:  step = run.step(model, optimizer); step.update(closure)    # it loops over step.shards(batch)"
        )
    known = set(map(id, params))
    others = [param for group in optimizer.param_groups for param in group["params"] if id(param) not in known]
    if others:
        raise ValueError(
            f"the optimizer holds {len(others)} parameters that the model of the step does not have, the first of "
            f"shape {tuple(others[0].shape)}. A step exchanges the gradients of the parameters that its model had when "
            f"the step was made.\n"
            f"  wrong:  step = run.step(model, optimizer, loss_fn); optimizer.add_param_group(...)\n"
            f"  right:  optimizer.add_param_group(...); step = run.step(model, optimizer, loss_fn)\n"
            f"  right:  torch.optim.SGD(model.parameters(), ...)    # after model.to(...)"
        )


def check_no_gradients(model: nn.Module) -> None:
    """Raise ValueError for a parameter that has a gradient before a step."""
    for name, param in model.named_parameters():
        if param.grad is not None:
            raise ValueError(
                f"{name!r} of the model has a gradient before the step, which would be lost: a step makes forward and "
                f"backward passes itself, and leaves no gradients behind.\n"
                f"  wrong:  loss.backward(); step(batch)\n"
                f"  right:  step(batch)                                # loss_fn returns the whole loss\n"
                f"  right:  run.step(..., also=[model])                # for another step whose loss calls this model"
            )


def is_compiled_by_shape(module: nn.Module) -> bool:
    """Return whether a part was compiled by `torch.compile` without dynamic=True: once for each shape."""
    compiled = (part for part in module.modules() if hasattr(part, "_orig_mod"))
    return any(getattr(part.dynamo_ctx, "_dynamic", None) is not True for part in compiled)


def check_compiled(sizes: Sequence[int]) -> None:
    """Raise ValueError for shards of different sizes."""
    different = sorted({size for size in sizes if size})
    if len(different) > 1:
        raise ValueError(
            f"the model is compiled for one shape at a time, and the shards of this batch of {sum(sizes)} "
            f"have {' and '.join(map(str, different))} samples. For which shape it is compiled first depends on the "
            f"process, and so would the last bits of the result.\n"
            f"  wrong:  torch.compile(model)\n"
            f"  right:  torch.compile(model, dynamic=True)\n"
            f"  right:  run.batches(data, {len(sizes) * max(1, sum(sizes) // len(sizes))}, drop_last=True)"
        )


def check_precision(autocast: object, loss_scale: object, model: nn.Module) -> None:
    """Raise ValueError for another type than a 16-bit one, a scale without float16, and a float16 model."""
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise ValueError(f"autocast must be torch.bfloat16, torch.float16 or None, got {autocast!r}")
    if loss_scale is not None and autocast is not torch.float16:
        raise ValueError(f"loss_scale= is for autocast=torch.float16, and autocast is {autocast!r}; leave it out")
    half = next((name for name, param in model.named_parameters() if param.dtype == torch.float16), None)
    if autocast is torch.float16 and half is not None:
        raise ValueError(
            f"{half!r} of the model is float16: its gradient would overflow when the loss is scaled.\n"
            f"Leave the model in float32, model.float(); autocast=torch.float16 computes in float16 where that is safe."
        )


def check_own_loop(models: Sequence[object], optimizers: Sequence[object], options: Mapping[str, object]) -> None:
    """Raise ValueError for a missing model or optimizer, and for options that only a step with `loss_fn` has."""
    if not models or not optimizers:
        raise ValueError(f"run.step got {len(models)} models and {len(optimizers)} optimizers; it needs one of each")
    instead = {
        "clip_norm": (None, "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)    # before step.update()"),
        "accumulate": (1, "several loops over step.shards(batch)    # before one step.update()"),
        "autocast": (None, "with torch.autocast(run.device.type, torch.bfloat16): ...    # in the loop"),
        "batch_norm": ("shard", "run.step(model, optimizer, loss_fn, batch_norm='global')    # with shards='devices'"),
    }
    for name, (default, right) in instead.items():
        if options[name] != default:
            raise ValueError(
                f"run.step without loss_fn has no {name}={options[name]!r}: the program writes the loop over the "
                f"shards.\n  wrong:  step = run.step(model, optimizer, {name}={options[name]!r})\n  right:  {right}"
            )


def check_step(clip_norm: float | None, accumulate: int) -> None:
    """Raise ValueError unless both are positive."""
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm must be above 0, got {clip_norm!r}")
    whole_number("accumulate", accumulate, least=1)


def check_name(setting: str, value: object, known: Sequence[str]) -> None:
    """Raise ValueError for an unknown value."""
    if value not in known:
        raise ValueError(f"unknown {setting}={value!r}{did_you_mean(str(value), known)}")


def whole_number(name: str, value: SupportsIndex, *, least: int) -> int:
    """Return the value as an int. Raise TypeError for other types and bool, ValueError if it is below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def seconds(name: str, value: float) -> float:
    """Return the limit as a float. Raise TypeError for other types, ValueError unless it is positive and finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, or None, got {value!r}")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be above 0 and finite, got {value!r}; None is without a limit")
    return float(value)
