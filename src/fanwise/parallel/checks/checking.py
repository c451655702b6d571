"""What is wrong with a model, an optimizer or an option, said before the first step."""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import SupportsIndex

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ...base.nearest import did_you_mean
from ..comm.team import Team
from .agreement import first_difference
from .checksums import marks_of_modules

# Of torch, deepspeed and fairscale: what spreads a model over processes in its own way, by the names of classes.
_WRAPPERS = frozenset(
    (
        *("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "ShardedDataParallel"),
        *("DeepSpeedEngine", "PipelineModule"),
    )
)
_SHARDED_OPTIMIZERS = ("ZeroRedundancyOptimizer", "DistributedOptimizer", "OSS", "DeepSpeedZeroOptimizer")


def check_model(model: nn.Module, device: torch.device) -> None:
    """Raises TypeError for what is no module; ValueError for a wrapper, or a parameter or buffer elsewhere."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        wrapper = next((kind for kind in type(module).__mro__ if kind.__name__ in _WRAPPERS), None)
        if wrapper is not None:
            kind = wrapper if module is not model or wrapper.__name__ == "FSDPModule" else type(module)
            raise ValueError(
                f"the model is wrapped in {kind.__name__}, which would spread the work once more.\n"
                f"  wrong:  run.step({kind.__name__}(model), ...)\n  right:  run.step(model, ...)"
            )
    for name, param in model.named_parameters():
        if type(param).__name__ == "DTensor" or type(param.data).__name__ == "DTensor":
            raise ValueError(
                f"{name!r} of the model is a DTensor, of which each process has a part; a run needs whole parameters.\n"
                f"  wrong:  run.step(fully_shard(model), ...)\n  right:  run.step(model, ...)"
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ValueError(f"{name!r} of the model has no shape yet; call the model once with a batch, then run.step")
        if tensor.device != device:
            raise ValueError(
                f"{name!r} of the model is on {tensor.device}, and this run's device is {device}.\n"
                f"Write model.to(run.device), before the optimizer is made."
            )


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, *, has_closure: bool = False) -> None:
    """Raises TypeError for what is no optimizer; ValueError for one of other parameters.

    Args:
        has_closure: it may be one that calls the loss itself.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"the optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if type(optimizer).__name__ in _SHARDED_OPTIMIZERS:
        raise ValueError(
            f"{type(optimizer).__name__} spreads its state over a process group of its own. A run spreads the state of "
            f"Adam, AdamW, SGD, RMSprop and Adagrad over its processes by itself.\n"
            f"  wrong:  {type(optimizer).__name__}(model.parameters(), torch.optim.Adam, lr=0.01)\n"
            f"  right:  torch.optim.Adam(model.parameters(), lr=0.01)"
        )
    if isinstance(optimizer, torch.optim.LBFGS) and not has_closure:
        raise ValueError(
            "LBFGS calls the loss several times an update, and run.step(model, optimizer, loss_fn) calls it once.\n"
            "  wrong:  step = run.step(model, optimizer, loss_fn); step(batch)\n"
            "  right:  step = run.step(model, optimizer); step.update(closure)    # it loops over step.shards(batch)"
        )
    of_model = {id(param) for param in model.parameters()}
    held = [param for group in optimizer.param_groups for param in group["params"]]
    found = [tuple(param.shape) for param in held if id(param) not in of_model]
    if found:
        raise ValueError(
            f"the optimizer holds {len(found)} parameters that are not the model's, the first of shape {found[0]}.\n"
            f"Make it of model.parameters(), after the last model.to(...); put several modules into one."
        )


def check_no_gradients(model: nn.Module) -> None:
    """Raises ValueError for a parameter that has a gradient before a step."""
    for name, param in model.named_parameters():
        if param.grad is not None:
            raise ValueError(
                f"{name!r} of the model has a gradient before the step, which would be lost: a step makes forward and "
                f"backward passes itself, and leaves no gradients behind.\n"
                f"  wrong:  loss.backward(); step(batch)\n"
                f"  right:  step(batch)                                # loss_fn returns the whole loss\n"
                f"  right:  optimizer.register_step_pre_hook(fn)       # fn sees the gradients, to log or clip them\n"
                f"  right:  run.step(..., also=[model])                # for another step whose loss calls this model"
            )


def is_compiled_by_shape(module: nn.Module) -> bool:
    """Return whether a part was compiled by `torch.compile` without dynamic=True, and so anew for another shape."""
    compiled = (part for part in module.modules() if hasattr(part, "_orig_mod"))
    return any(getattr(part.dynamo_ctx, "_dynamic", None) is not True for part in compiled)


def check_compiled(sizes: Sequence[int]) -> None:
    """Raise ValueError for shards of different sizes, for each of which a model would be compiled anew."""
    found = sorted({size for size in sizes if size})
    if len(found) > 1:
        raise ValueError(
            f"the model is compiled for one shape at a time, and the shards of this batch of {sum(sizes)} "
            f"have {' and '.join(map(str, found))} samples. For which shape it is compiled first depends on the "
            f"process, and so would the last bits of the result.\n"
            f"  wrong:  torch.compile(model)\n"
            f"  right:  torch.compile(model, dynamic=True)\n"
            f"  right:  run.batches(data, {len(sizes) * max(1, sum(sizes) // len(sizes))}, drop_last=True)   "
            f"# a multiple of {len(sizes)} shards"
        )


def check_precision(autocast: object, loss_scale: object, model: nn.Module) -> None:
    """Raises ValueError for what is no 16-bit type, a scale without float16, and float16 of a float16 model."""
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise ValueError(f"autocast must be torch.bfloat16, torch.float16 or None, got {autocast!r}")
    if loss_scale is not None and autocast is not torch.float16:
        raise ValueError(f"loss_scale= is for autocast=torch.float16, and autocast is {autocast!r}; leave it out")
    halves = [name for name, param in model.named_parameters() if param.dtype == torch.float16]
    if autocast is torch.float16 and halves:
        raise ValueError(
            f"{halves[0]!r} of the model is float16: its gradient would overflow when the loss is scaled.\n"
            f"Leave the model in float32, model.float(); autocast=torch.float16 computes in float16 where that is safe."
        )


def check_own_loop(
    models: Sequence[object],
    optimizers: Sequence[object],
    *,
    clip_norm: object,
    accumulate: object,
    autocast: object,
    batch_norm: object,
) -> None:
    """Raises ValueError for options that only a step with a loss function has, and for no model or optimizer."""
    if not models or not optimizers:
        raise ValueError(f"run.step got {len(models)} models and {len(optimizers)} optimizers; it needs one of each")
    found = {
        f"clip_norm={clip_norm!r}": clip_norm is not None,
        f"accumulate={accumulate!r}": accumulate != 1,
        f"autocast={autocast!r}": autocast is not None,
        f"batch_norm={batch_norm!r}": batch_norm != "shard",
    }
    instead = (
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)       # between the loop and step.update()",
        "several loops over step.shards(batch)                         # before one step.update()",
        "with torch.autocast(run.device.type, torch.bfloat16): ...     # in the loop, around the forward pass",
        "run.step(model, optimizer, loss_fn, batch_norm='global')      # and fanwise.run(..., shards='devices')",
    )
    for (option, is_given), right in zip(found.items(), instead, strict=True):
        if is_given:
            raise ValueError(
                f"run.step without loss_fn has no {option}: the loop over the shards is the program's.\n"
                f"  wrong:  step = run.step(model, optimizer, {option})\n"
                f"  right:  {right}"
            )


def check_step(clip_norm: float | None, accumulate: int) -> None:
    """Raises ValueError unless both are positive."""
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm must be above 0, got {clip_norm!r}")
    whole_number("accumulate", accumulate, least=1)


def check_name(setting: str, value: object, known: Sequence[str]) -> None:
    """Raises ValueError for a value that is none of the known ones."""
    if value not in known:
        raise ValueError(f"unknown {setting}={value!r}{did_you_mean(str(value), known)}")


def whole_number(name: str, value: SupportsIndex, *, least: int) -> int:
    """The value as an int. Raises TypeError for what is none, ValueError for one below `least`."""
    try:
        if isinstance(value, bool):  # verify=True, say: a number of what?
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def seconds(name: str, value: float) -> float:
    """A limit. Raises TypeError for what is no number, ValueError unless it is positive and finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, or None, got {value!r}")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be above 0 and finite, got {value!r}; None is without a limit")
    return float(value)


def check_same(team: Team, modules: Mapping[str, nn.Module]) -> None:
    """Raises ValueError unless model and modules, by name, begin with the same values in all processes."""
    if team.size == 1:
        return
    own = marks_of_modules(modules)
    different = first_difference(team.together(lambda: team.gather("makes a step of a model", own)))
    if different is not None:
        raise ValueError(
            f"the model differs between the processes, first in {different.name!r}: {different.said()}.\n"
            f"Make it the same way in every process; what is random is the same when it is drawn from torch, numpy "
            f"or random inside the training function."
        )
