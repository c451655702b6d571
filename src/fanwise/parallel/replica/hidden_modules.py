"""Modules that a loss calls although nothing that it names leads to them: found when they are called.

torch tells before every module's forward pass, for one shard at a time and in the first steps only, since it costs some
time in each module. One whose buffers the pass has changed is refused: nobody looks after them, so they would be
those of the shards that this process has executed.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook


@contextmanager
def strangers_refused(known: Collection[int]) -> Iterator[None]:
    """In this block, in this thread.

    Args:
        known: ids of modules that are looked after.

    Raises:
        ValueError: the buffers of another one have changed. They are as before the block then.
    """
    found: dict[int, tuple[nn.Module, dict[str, Tensor]]] = {}
    thread = threading.get_ident()

    def look(module: nn.Module, _: Any) -> None:  # Any: arguments of the user's
        if module._buffers and id(module) not in known and id(module) not in found:
            if threading.get_ident() == thread:
                kept = {name: each.detach().clone() for name, each in module._buffers.items() if each is not None}
                found[id(module)] = module, kept

    handle = register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()
    for module, kept in found.values():
        for name, before in kept.items():
            buffer = module._buffers[name]
            if buffer is not None and not torch.equal(buffer, before):
                with torch.no_grad():
                    buffer.copy_(before)
                raise ValueError(
                    f"the loss calls a {type(module).__name__} that is no part of the model and changes its buffer "
                    f"{name!r}, and nothing that loss_fn names leads to it: in every process it would become something "
                    f"else.\n"
                    f"  wrong:  run.step(model, optimizer, loss_fn)\n"
                    f"  right:  run.step(model, optimizer, loss_fn, also=[that_module])"
                )
