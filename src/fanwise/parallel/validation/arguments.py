"""Validate models, optimizers and options, at run.step and in each step.

Wrong types raise TypeError, wrong values ValueError. The message names the argument.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import SupportsIndex

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ...base.nearest import must_be_one_of

# Names of classes that spread a model or an optimizer over processes.
_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "ShardedDataParallel"}
_WRAPPERS |= {"DeepSpeedEngine", "PipelineModule"}
_SHARDED_OPTIMIZERS = {"ZeroRedundancyOptimizer", "DistributedOptimizer", "OSS", "DeepSpeedZeroOptimizer"}


def check_model(model: nn.Module, device: torch.device) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        wrapper = next((base.__name__ for base in type(module).__mro__ if base.__name__ in _WRAPPERS), None)
        if wrapper is not None:
            raise ValueError(
                f"the model is wrapped in {wrapper}, which would spread the work a second time.\n"
                f"  wrong:  run.step({wrapper}(model), ...)\n  right:  run.step(model, ...)"
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if "DTensor" in (type(tensor).__name__, type(tensor.data).__name__):
            raise ValueError(f"{name!r} of the model is a DTensor. A run needs whole parameters: remove fully_shard")
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ValueError(f"{name!r} of the model has no shape yet. Call the model with a batch before run.step")
        if tensor.device != device:
            raise ValueError(
                f"{name!r} of the model is on {tensor.device}, and this run's device is {device}.\n"
                f"Call model.to(run.device) before you create the optimizer."
            )


def check_optimizer(
    optimizer: torch.optim.Optimizer, params: Sequence[nn.Parameter], *, allow_closure: bool = False
) -> None:
    """`params`: parameters that the optimizer may have. `allow_closure`: accept LBFGS, which needs a closure."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"the optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if type(optimizer).__name__ in _SHARDED_OPTIMIZERS:
        raise ValueError(
            f"{type(optimizer).__name__} divides its state among the processes of its own process group. Pass an "
            f"ordinary optimizer such as torch.optim.Adam: the run divides the state among the processes."
        )
    if isinstance(optimizer, torch.optim.LBFGS) and not allow_closure:
        raise ValueError(
            "LBFGS evaluates the loss several times per update. Create the step without loss_fn, "
            "run.step(model, optimizer), and call step.update(closure)."
        )
    known = set(map(id, params))
    unknown = [param for group in optimizer.param_groups for param in group["params"] if id(param) not in known]
    if unknown:
        raise ValueError(
            f"the optimizer holds {len(unknown)} parameters that the model of the step does not have, the first of "
            f"shape {tuple(unknown[0].shape)}. A step uses the parameters that its model had when run.step was "
            f"called.\n"
            f"  wrong:  step = run.step(model, optimizer, loss_fn); optimizer.add_param_group(...)\n"
            f"  right:  optimizer.add_param_group(...); step = run.step(model, optimizer, loss_fn)"
        )


def check_no_gradients(model: nn.Module) -> None:
    for name, param in model.named_parameters():
        if param.grad is not None:
            raise ValueError(
                f"{name!r} of the model has a gradient, which the step would discard, because a step computes all "
                f"gradients itself.\n"
                f"  wrong:  loss.backward(); step(batch)\n"
                f"  right:  step(batch)                    # loss_fn returns the whole loss\n"
                f"  right:  run.step(..., also=[model])    # if the gradient comes from a step of another model whose "
                f"loss calls this one"
            )


def is_compiled_per_shape(module: nn.Module) -> bool:
    """Return True if a part is compiled by `torch.compile` without dynamic=True, which recompiles for each shape."""
    compiled = (part for part in module.modules() if hasattr(part, "_orig_mod"))
    return any(getattr(part.dynamo_ctx, "_dynamic", None) is not True for part in compiled)


def check_equal_shard_sizes(sizes: Sequence[int]) -> None:
    different = sorted({size for size in sizes if size})
    if len(different) > 1:
        raise ValueError(
            f"the model is compiled for one shape at a time, but the shards of this batch of {sum(sizes)} samples "
            f"have {' and '.join(map(str, different))} samples. The compiled code would depend on the shape that "
            f"each process sees first.\n"
            f"  wrong:  torch.compile(model)\n"
            f"  right:  torch.compile(model, dynamic=True)"
        )


def check_precision(autocast: object, loss_scale: object, model: nn.Module) -> None:
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise ValueError(f"autocast must be torch.bfloat16, torch.float16 or None, got {autocast!r}")
    if loss_scale is not None and autocast is not torch.float16:
        raise ValueError(f"loss_scale= requires autocast=torch.float16, got autocast={autocast!r}. Remove loss_scale=.")
    half = next((name for name, param in model.named_parameters() if param.dtype == torch.float16), None)
    if autocast is torch.float16 and half is not None:
        raise ValueError(
            f"{half!r} of the model is float16, so its gradient would overflow when the loss is scaled. Use a float32 "
            f"model: autocast=torch.float16 computes in float16 where that is safe."
        )


def check_manual_step(models: Sequence[object], optimizers: Sequence[object], options: Mapping[str, object]) -> None:
    if not models or not optimizers:
        counts = f"{len(models)} models and {len(optimizers)} optimizers"
        raise ValueError(f"run.step got {counts}; it needs at least one of each")
    defaults = {"clip_norm": None, "autocast": None, "batch_norm": "shard"}
    for name, default in defaults.items():
        if options[name] != default:
            option = f"{name}={options[name]!r}"
            raise ValueError(
                f"run.step without loss_fn does not accept {option}. Without loss_fn your program loops over the "
                f"shards, clips with torch.nn.utils, and calls step.update() after one or more loops.\n"
                f"  wrong:  step = run.step(model, optimizer, {option})\n"
                f"  right:  step = run.step(model, optimizer, loss_fn, {option})"
            )


def check_one_of(setting: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(must_be_one_of(setting, value, known))


def check_whole_number(name: str, value: SupportsIndex, *, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def check_seconds(name: str, value: float) -> float:
    """Return the value, which must be positive and finite, as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, or None, got {value!r}")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be above 0 and finite, got {value!r}. None means no limit")
    return float(value)
