"""How memory of a device is handed to another process of the same host: what `lending` asks of CUDA.

    sender    lend(tensor) --> a copy that nobody writes any more, and a handle: plain values that may travel
    receiver  borrow(handle) --> a tensor over the sender's memory; copies are made of it; settle(copies); it ends
    sender    the copy ends when the receiver has let go; reclaim(handle) when the receiver died and could not say so

A protocol, so that the rest can be exercised where there is no GPU: `tests/support/played_devices.py` hands
out main memory.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from .loans import Sight

Handle = tuple[Any, ...]


class DeviceMemory(Protocol):
    """See the module. By any thread."""

    def holds_any(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether one of these may lie in memory that can be lent. A quick look, for each message with tensors."""

    def sight(self) -> Sight:
        """The devices of this process. May block, and load the device's driver."""

    def uuid_of(self, tensor: torch.Tensor) -> str:
        """Of the device it lies on; "": it is not of this memory."""

    def lend(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Handle]:
        """A copy of a contiguous tensor, and its handle, ordered after what was begun on the tensor by this thread.

        Raises RuntimeError, or OSError, when it cannot be handed out.
        """

    def borrow(self, uuid: str, handle: Handle, like: tuple[torch.dtype, tuple[int, ...]]) -> torch.Tensor:
        """The memory behind a handle, on this process's device of that UUID, as a tensor of a type and shape.

        What this thread begins on it comes after what the sender began. It is let go of with the last reference.
        Raises RuntimeError, OSError or LookupError when it cannot be opened.
        """

    def settle(self, copies: Sequence[torch.Tensor]) -> None:
        """Block until what this thread has begun on these, and on what it borrowed for them, is done."""

    def reclaim(self, handle: Handle) -> None:
        """Its borrower has died, or could not open it: it will not say that it let go. May be said once too often."""
