"""The state that torch keeps for each thread: gradients on or off, inference mode, autocast.

A function that switches gradients off leaves them off in its thread, which runs other calls later; and a coroutine in
its loop, which runs others meanwhile. Calls begin with torch's defaults, whatever earlier ones have left.
"""

import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import ExitStack
from typing import Any

import torch


def call_in_default_state(job: Callable[..., None], *args: object) -> None:
    """Call `job(*args)` with torch's defaults for a thread. Takes 0.1 us where nothing has changed them."""
    if torch.is_grad_enabled() and not torch.is_inference_mode_enabled() and not torch._C._is_any_autocast_enabled():
        job(*args)
        return
    with ExitStack() as stack:
        for kind in ("cpu", "cuda", "xpu", "mps"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        job(*args)


@types.coroutine
def with_own_grad_mode(coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """As `coroutine`, which begins with gradients on; those that run between its steps keep theirs."""
    is_enabled, value, error = True, None, None
    while True:
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(is_enabled)
        try:
            step = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            is_enabled = torch.is_grad_enabled()
            torch._C._set_grad_enabled(before)
        try:
            value, error = (yield step), None
        except BaseException as raised:  # cancelled
            value, error = None, raised
