"""What a worker has read, on its way to the process that trains: a file in memory, without a name.

    worker     sent(content)  -> a descriptor, and how long its parts are      process    received(descriptor, lengths)

Tensors and arrays are written once, by the worker, and are mapped where they are used: the process that trains copies
nothing. Each lies at an address that is the same modulo 64 bytes as in the worker, with the same strides, since a
library may choose its way by the address. Everything else is pickled. A file goes with the last tensor that lies in
it, or with the processes; there is nothing to clean up.
"""

import os
import pickle
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from ...tensor.wire import reduce_tensor
from .splitting import Content

_ALIGNED_BYTES = 64


def sent(content: Content) -> tuple[int, int, int]:
    """A descriptor of a file that holds `content`; where in it the list of its parts begins, and ends.

    The caller closes it. Raises what pickling raises, for what cannot leave its process.
    """
    buffers: list[pickle.PickleBuffer] = []
    pickled = _pickled(content, buffers)
    places: list[tuple[int, int]] = []
    offset = 0
    fd = os.memfd_create("fanwise-shard", os.MFD_CLOEXEC)
    try:
        for view in (memoryview(pickled), *(buffer.raw() for buffer in buffers)):
            offset += (_address(view) - offset) % _ALIGNED_BYTES if places else 0
            _write(fd, view, offset)
            places.append((offset, view.nbytes))
            offset += view.nbytes
        listed = memoryview(pickle.dumps(places, protocol=5))
        _write(fd, listed, offset)
    except BaseException:
        os.close(fd)
        raise
    return fd, offset, offset + listed.nbytes


def received(fd: int, begin: int, end: int) -> Content:
    """What was sent. The descriptor may be closed then."""
    storage: Any = torch.UntypedStorage.from_file(f"/proc/self/fd/{fd}", True, end)  # Any: torch's types differ
    whole: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()  # Any: an array, which is a buffer
    places = pickle.loads(whole[begin:end])
    pickled, *buffers = [whole[offset : offset + size] for offset, size in places]
    return pickle.loads(pickled, buffers=buffers)


def _write(fd: int, view: memoryview, offset: int) -> None:
    while view.nbytes:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _address(view: memoryview) -> int:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0] if view.nbytes else 0
    return address


def _pickled(content: Content, buffers: list[pickle.PickleBuffer]) -> bytes:
    # By name where that can be: the process that trains has the same modules, and so the same classes. A class of a
    # program that came here by value has no module to be found in.
    for pickler in (_ByName, _ByValue):
        file = BytesIO()
        buffers.clear()
        try:
            pickler(file, protocol=5, buffer_callback=buffers.append).dump(content)
        except (pickle.PicklingError, AttributeError):
            if pickler is _ByValue:
                raise
        else:
            break
    return file.getvalue()


class _ByName(pickle.Pickler):
    def reducer_override(self, found: Any) -> Any:  # Any: what is pickled, and how
        return _reduced(found)


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def reducer_override(self, found: Any) -> Any:  # Any: what is pickled, and how
        reduced = _reduced(found)
        return super().reducer_override(found) if reduced is NotImplemented else reduced


def _reduced(found: Any) -> Any:  # Any: as pickle's
    """Strided tensors of main memory as buffers that keep their addresses; other tensors as everywhere."""
    if type(found) is not Tensor or found.device.type != "cpu":
        return NotImplemented
    if found.layout is not torch.strided or found.is_nested or found.is_quantized:
        return reduce_tensor(found)
    if found.grad_fn is not None or found.is_conj() or found.is_neg():
        return reduce_tensor(found)
    size, stride = tuple(found.shape), found.stride()
    span = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) if found.numel() else 0
    begin = int(found.storage_offset()) * found.element_size()
    storage = torch.empty(0, dtype=torch.uint8).set_(found.untyped_storage())
    held: Any = storage[begin : begin + span * found.element_size()].numpy()  # Any: an array, which is a buffer
    return _tensor, (pickle.PickleBuffer(held), found.dtype, size, stride, found.requires_grad)


def _tensor(
    held: Any, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], grad: bool
) -> Tensor:  # Any: array
    """A tensor that lies in the file."""
    if 0 in size:
        return torch.empty(size, dtype=dtype, requires_grad=grad)
    flat = torch.from_numpy(held)
    found = torch.empty(0, dtype=dtype).set_(
        flat.untyped_storage(), int(flat.storage_offset()) // dtype.itemsize, size, stride
    )
    return found.requires_grad_() if grad else found
