"""What torch keeps for each thread, taken over from the thread that calls a step by those that execute its shards."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


class Surroundings:
    """Of the calling thread, on a device."""

    def __init__(self, device: torch.device) -> None:
        self._has_grad = torch.is_grad_enabled()
        self._autocasts = [
            (kind, torch.get_autocast_dtype(kind))
            for kind in sorted({"cpu", device.type})
            if torch.is_autocast_enabled(kind)
        ]
        self._made_on = torch.get_default_device()
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """In this block the thread has them, too, and two things are different.

        A backward pass stays in the thread, on an accelerator as well: a shard that waits in it would hold up the one
        thread that torch has for all of a device. And no cast of a parameter is kept by autocast: what is kept is
        shared by all threads, so the number of roundings of a parameter that is used twice would depend on others.
        """
        keeps_casts = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.autograd.set_multithreading_enabled(False))
                stack.enter_context(torch.set_grad_enabled(self._has_grad))
                if self._stream is not None:
                    stack.enter_context(torch.cuda.stream(self._stream))
                if self._made_on != torch.get_default_device():
                    stack.enter_context(torch.device(self._made_on))
                for kind, dtype in self._autocasts:
                    stack.enter_context(torch.autocast(kind, dtype))
                yield
        finally:
            torch.set_autocast_cache_enabled(keeps_casts)
