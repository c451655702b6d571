"""Bringing batches to a device, ahead of the step that uses them.

    begin(content)    a copy by way of pinned memory, on a stream of its own: it goes on beside the kernels of this step
    arrived()         the kernels of the next step wait for the copy; no process does

For a CPU device the content is where it has to be, and nothing is done.
"""

from collections.abc import Callable
from typing import Any

import torch

from .splitting import Content, moved, tensors_in


class Transfer:
    """To one device.

    Args:
        pin: by way of pinned memory, which a GPU copies from by itself. Only a GPU has any use for it.
    """

    def __init__(self, device: torch.device, *, pin: bool = True) -> None:
        self._device = device
        self._pin = pin and device.type == "cuda"
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)  # Any: as torch.cuda
        self._stream: Any = None  # Any: as torch.cuda.Stream

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to be brought."""
        return self._module is not None

    def now(self, content: Content) -> Content:
        """For kernels that are queued after this."""
        return content if self._module is None else moved(content, self._device, pin=self._pin)

    def begin(self, content: Content) -> Callable[[], Content]:
        """Copy beside what is queued; what is returned says that the content is needed now, and gives it."""
        if self._module is None:
            return lambda: content
        if self._stream is None:
            self._stream = self._module.Stream(self._device)
        with self._module.stream(self._stream):
            there = moved(content, self._device, pin=self._pin)
            done = self._stream.record_event()

        def arrived() -> Content:
            current = self._module.current_stream(self._device)
            current.wait_event(done)
            for tensor in tensors_in(there):
                tensor.record_stream(current)  # else its memory could be given away while a kernel reads it
            return there

        return arrived
