"""Arrays to bytes and back, with no pickle and, wherever the layout allows, no copy.

    x --to_wire--> header (bytes)   --link-->  header  --from_wire--> y
                   [view of memory]           [buffer]                (adopts the buffer)

Knows no engine: what serves each is in `adapters`. Both ways there is exactly one
buffer, of zero bytes for an array of zero elements. What arrives is C-contiguous, native-endian and writable;
strides, a read-only flag, a graph of gradients and `.grad` do not travel.

Invariants: `from_wire` has checked header and length before it looks at the buffer; no bytes make it crash.
The contents are not looked at.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...base.errors import NotInstalled, NotSendableError, WireError
from ..adapters import Wire, wires
from ..engines import ENGINES, check_engine
from .header import WireHeader, read_header
from .sendable import engine_of_type

if TYPE_CHECKING:
    import torch


def to_wire(x: object) -> tuple[bytes, list[memoryview]]:
    """Describe an array of any engine in a few bytes, and give its memory as it is.

    The buffer is a view of x's own memory when x is C-contiguous, native-endian and on a CPU; else of one
    copy. Do not change x before the buffer has been sent. Whoever hands the buffer to `from_wire` in this same
    process shares memory with x; `buffer.toreadonly()` makes `from_wire` copy. The buffer of a JAX or TensorFlow
    array is read-only. Blocks to fetch from a GPU, and until JAX has computed x.

    Args:
        x: a `numpy.ndarray` (or `memmap`, which arrives as a plain array), `torch.Tensor`, `torch.nn.Parameter`,
            `jax.Array` or eager `tf.Tensor`. One of JAX that is spread over devices is gathered.

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
    header, buffer = (wires.get(engine) or _load(engine)).encode(x)
    return header, [buffer]


def from_wire(
    header: bytes | bytearray | memoryview,
    buffers: Sequence[memoryview | bytearray | bytes],
    device: "str | torch.device | None" = None,
    engine: str | None = None,
) -> Any:  # Any: the array type that the header names
    """Build the array that `to_wire` described, in the engine it came from or in another one.

    The array adopts the buffer and keeps it alive when the buffer is writable and aligned for the type
    (`aligned_buffer` is); do not use the buffer for anything else afterwards: JAX and TensorFlow take it for
    constant, and need it aligned to 64 bytes. Otherwise the data are copied once (float8 into TensorFlow too).

    Args:
        header: what `to_wire` returned first.
        buffers: what it returned second, or the same bytes in other memory.
        device: where the array shall be; if None on a CPU, an array of JAX on its default device.
            `read_header(header).device` is where a torch tensor was.
        engine: whose array to make, without a copy more; that of the sender if None. What only torch knows
            (`requires_grad`, Parameter) stays behind in another engine.

    Raises:
        WireError: the header is malformed, or the buffer has another length than it says.
        NotInstalled: the engine is not installed here; the message names the extra.
        ValueError: there is no such engine or device.
        TypeError: a buffer is not contiguous bytes, or the engine lacks the element type; also where JAX is set to
            32 bits and would narrow it.
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
    if engine is not None and engine != head.engine:
        head = _for_engine(head, engine)
    return (wires.get(head.engine) or _load(head.engine)).decode(head, buffer, device)


def check_loaded(header: bytes | bytearray | memoryview) -> None:
    """Refuse the header of an array whose engine this process has not loaded.

    For bytes that may load nothing here. To load an engine takes a second or more and 100 MB and more, so `from_wire`
    is for senders who may ask for that.

    Raises:
        WireError: that, or the header is malformed.
    """
    engine = read_header(header).engine
    if sys.modules.get(engine) is None:
        raise WireError(
            f"an array of {engine} came, and this process has not loaded {engine}; these bytes may load nothing.\n"
            f"Import {engine} here before, or send fanwise.tensor.to_numpy(x)"
        )


def _as_bytes(buffer: memoryview | bytearray | bytes) -> memoryview:
    # A view of our own: it holds the memory even when the caller releases his.
    view = memoryview(buffer)
    if view.ndim == 1 and view.itemsize == 1 and view.c_contiguous:
        return view
    try:
        return view.cast("B")
    except (TypeError, ValueError) as error:
        raise TypeError(f"a buffer must be contiguous bytes, got format {view.format!r}, shape {view.shape}") from error


def _for_engine(head: WireHeader, engine: str) -> WireHeader:
    """The header as if the array came from `engine`."""
    if engine not in ENGINES:
        check_engine(engine)
    if engine not in head.dtype.engines:
        raise TypeError(
            f"{engine} has no element type {head.dtype.name}; read the array without engine=, as one of {head.engine}"
        )
    return head._replace(engine=engine, requires_grad=False, is_parameter=False, device="")


def _load(engine: str) -> Wire:
    try:
        return wires[check_engine(engine)]
    except (ImportError, ValueError) as error:  # ValueError: it was taken out of sys.modules on purpose
        raise NotInstalled(
            f"An array of {engine} came, and the library {engine} is not installed in this process. "
            f"Install it: pip install 'fanwise[{ENGINES[engine].extra or engine}]'. Or let the sender send "
            f"fanwise.tensor.to_numpy(x), or read it with from_wire(header, buffers, engine='numpy')"
        ) from error


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
    if "jax" in engines or "tensorflow" in engines or name.startswith(("jax.", "jaxlib.", "tensorflow.")):
        return NotSendableError(
            f"{name} is no plain array. Send its value (of a tf.Variable: x.value(); of random keys: "
            f"jax.random.key_data(x)); what stands for an array in a traced function has none yet."
        )
    return NotSendableError(
        f"to_wire takes a numpy.ndarray, torch.Tensor, torch.nn.Parameter, jax.Array or tf.Tensor, got {name}."
    )
