"""Arrays to bytes and back, with no pickle and, wherever the layout allows, no copy.

    x --to_wire--> header (bytes)   --link-->  header  --from_wire--> y
                   [view of memory]           [buffer]                (adopts the buffer)

Knows which file serves which engine; each `with_<engine>` file knows its engine. Both ways there is exactly one
buffer, of zero bytes for an array of zero elements. What arrives is C-contiguous, native-endian and writable;
strides, a read-only flag, a graph of gradients and `.grad` do not travel.

Invariants: `from_wire` has checked header and length before it looks at the buffer; no bytes make it crash.
The contents are not looked at.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..base.errors import NotSendableError, WireError
from .engines import engine_of_type
from .header import WireHeader, read_header

if TYPE_CHECKING:
    import torch


class _Codec(Protocol):
    """What a `with_<engine>` file offers."""

    def encode(self, x: Any) -> tuple[bytes, memoryview]: ...  # Any: the engine's own array type

    def decode(self, header: WireHeader, buffer: memoryview, device: Any) -> Any: ...  # Any: the same


_codecs: dict[str, _Codec] = {}


def to_wire(x: object) -> tuple[bytes, list[memoryview]]:
    """Describe a torch tensor or numpy array in a few bytes, and give its memory as it is.

    The buffer is a view of x's own memory when x is C-contiguous, native-endian and on a CPU; else of one
    copy. Do not change x before the buffer has been sent. Whoever hands the buffer to `from_wire` in this same
    process shares memory with x; `buffer.toreadonly()` makes `from_wire` copy. Blocks only to fetch from a GPU.

    Args:
        x: a `numpy.ndarray` (or `memmap`, which arrives as a plain array), `torch.Tensor` or `torch.nn.Parameter`.

    Returns:
        The header, and a list of one buffer, a one-dimensional view of bytes.

    Raises:
        NotSendableError: no array, a subclass, or one whose memory alone does not describe it (objects,
            strings, sparse, quantized ...). The message says what to send in its place.

    >>> import numpy
    >>> header, buffers = to_wire(numpy.arange(3.0))
    >>> from_wire(header, buffers)
    array([0., 1., 2.])
    """
    engine = engine_of_type(type(x))
    if engine is None:
        raise _refused(x)
    header, buffer = (_codecs.get(engine) or _load(engine)).encode(x)
    return header, [buffer]


def from_wire(
    header: bytes | bytearray | memoryview,
    buffers: Sequence[memoryview | bytearray | bytes],
    device: "str | torch.device | None" = None,
) -> Any:  # Any: the array type that the header names
    """Build the array that `to_wire` described, in the engine it came from.

    The array adopts the buffer and keeps it alive when the buffer is writable and aligned for the type
    (`aligned_buffer` is); do not use the buffer for anything else afterwards. Otherwise the data are copied once.

    Args:
        header: what `to_wire` returned first.
        buffers: what it returned second, or the same bytes in other memory.
        device: where a torch tensor shall be; on a CPU if None. `read_header(header).device` is where it was.

    Raises:
        WireError: the header is malformed, or the buffer has another length than it says.
        ValueError: `device` is given for a numpy array and is not "cpu".
        TypeError: a buffer is not contiguous bytes.
    """
    head = read_header(header)
    if len(buffers) != 1:
        raise WireError(f"An array has exactly one buffer, got {len(buffers)}.")
    buffer = _as_bytes(buffers[0])
    if buffer.nbytes != head.size_bytes:
        raise WireError(
            f"An array of shape {head.shape} and type {head.dtype.name} has {head.size_bytes} bytes, "
            f"its buffer has {buffer.nbytes}."
        )
    return (_codecs.get(head.engine) or _load(head.engine)).decode(head, buffer, device)


def _as_bytes(buffer: memoryview | bytearray | bytes) -> memoryview:
    # A view of our own: it holds the memory even when the caller releases his.
    view = memoryview(buffer)
    if view.ndim == 1 and view.itemsize == 1 and view.c_contiguous:
        return view
    try:
        return view.cast("B")
    except (TypeError, ValueError) as error:
        raise TypeError(f"a buffer must be contiguous bytes, got format {view.format!r}, shape {view.shape}") from error


def _load(engine: str) -> _Codec:
    codec: _Codec
    if engine == "torch":
        from . import with_torch

        codec = with_torch
    else:
        from . import with_numpy

        codec = with_numpy
    _codecs[engine] = codec
    return codec


def _refused(x: object) -> NotSendableError:
    kind = type(x)
    name = f"{kind.__module__}.{kind.__qualname__}"
    engines = {engine_of_type(base) for base in kind.__mro__}
    if "torch" in engines:
        return NotSendableError(
            f"{name} is a subclass of torch.Tensor, and its memory alone does not tell what it means. "
            f"Send a plain tensor, for example x.as_subclass(torch.Tensor), or pickle the object."
        )
    if "numpy" in engines:
        return NotSendableError(
            f"{name} is a subclass of numpy.ndarray, and its memory alone does not tell what it means. "
            f"Send a plain array, for example x.view(numpy.ndarray) (a masked array: its data and its mask), "
            f"or pickle the object."
        )
    return NotSendableError(f"to_wire takes a numpy.ndarray, torch.Tensor or torch.nn.Parameter, got {name}.")
