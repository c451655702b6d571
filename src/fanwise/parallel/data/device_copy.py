"""Copies shards to the device ahead of the step that uses them, on a stream of their own."""

from collections.abc import Callable
from typing import Any

import torch

from .batch import Content, copy_to_device, tensors_in


class DeviceCopy:
    """Copies to one device. For a CPU device there is nothing to copy.

    Args:
        pin: copy to a GPU over pinned memory.
    """

    def __init__(self, device: torch.device, *, pin: bool = True) -> None:
        self._device = device
        self._pin = pin
        self._module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._stream: Any = None

    @property
    def is_needed(self) -> bool:
        return self._module is not None

    def copy(self, content: Content) -> Content:
        """Copy on the current stream."""
        return copy_to_device(content, self._device, pin=self._pin)

    def start(self, content: Content) -> Callable[[], Content]:
        """Start a copy beside the kernels of the current stream. The returned function makes later kernels wait."""
        if self._module is None:
            return lambda: content
        if self._stream is None:
            self._stream = self._module.Stream(self._device)
        with self._module.stream(self._stream):
            copied = copy_to_device(content, self._device, pin=self._pin)
            finished = self._stream.record_event()

        def wait() -> Content:
            current = self._module.current_stream(self._device)
            current.wait_event(finished)
            for tensor in tensors_in(copied):
                tensor.record_stream(current)  # otherwise its memory could be reused while a kernel reads it
            return copied

        return wait
