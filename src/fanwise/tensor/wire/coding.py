"""Arrays to bytes and back, without pickle and, wherever the layout allows, without a copy.

    x --to_wire--> header, [view of memory]   --link-->  header, [buffer] --from_wire--> y, which adopts the buffer

A received array is C-contiguous, native-endian and writable; strides, the graph of gradients and `.grad` are not sent.
Arrays are recognized by their exact type, because the memory of a subclass does not hold its meaning. `from_wire`
checks header and length before it reads the buffer; no bytes make it crash.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...base.errors import NotInstalled, NotSendableError, WireError
from ..adapters import exchanges
from ..engines import ENGINES, check_engine
from .header import read_header

if TYPE_CHECKING:
    import torch

_ENGINE_BY_TYPE_NAME = {
    ("numpy", "ndarray"): "numpy",
    ("numpy", "memmap"): "numpy",
    ("torch", "Tensor"): "torch",
    ("torch.nn.parameter", "Parameter"): "torch",
    ("jaxlib._jax", "ArrayImpl"): "jax",
    ("jaxlib.xla_extension", "ArrayImpl"): "jax",  # before jaxlib 0.6
    ("tensorflow.python.framework.ops", "EagerTensor"): "tensorflow",
}
_SHORT_NAMES = frozenset(name for _, name in _ENGINE_BY_TYPE_NAME)
_engine_by_type: dict[type, str] = {}
_coders: dict[str, Any] = {}


def to_wire(x: object) -> tuple[bytes, list[memoryview]]:
    """Return a header of a few bytes that describes an array, and its memory.

    The buffer is a view of x's own memory if x is C-contiguous, native-endian and on a CPU; otherwise of a copy. Do not
    change x before the buffer has been sent. In the same process `from_wire` shares the memory with x; pass
    `buffer.toreadonly()` to copy. Blocks to fetch from a GPU, and until JAX has computed x.

    Args:
        x: a `numpy.ndarray` (or `memmap`, which arrives as a plain array), `torch.Tensor`, `torch.nn.Parameter`,
            `jax.Array` or eager `tf.Tensor`. A JAX array on several devices is gathered.

    Returns:
        The header, and a list of one buffer, a one-dimensional view of bytes.

    Raises:
        NotSendableError: not an array, a subclass, or an array whose memory does not describe it (objects, strings,
            sparse, quantized ...). The message says what to send instead.

    >>> import numpy
    >>> header, buffers = to_wire(numpy.arange(3.0))
    >>> from_wire(header, buffers)
    array([0., 1., 2.])
    """
    engine = engine_of_type(type(x))
    if engine is None:
        raise NotSendableError(
            f"to_wire takes a numpy.ndarray, torch.Tensor, torch.nn.Parameter, jax.Array or eager tf.Tensor, no "
            f"subclass and no traced value, got {type(x).__module__}.{type(x).__qualname__}. Send plain arrays, such "
            f"as x.as_subclass(torch.Tensor), x.view(numpy.ndarray), data and mask of a masked array, x.value() of a "
            f"variable, jax.random.key_data(x); or pickle the object."
        )
    header, buffer = (_coders.get(engine) or _load(engine)).encode(x, engine)
    return header, [buffer]


def from_wire(
    header: bytes | bytearray | memoryview,
    buffers: Sequence[memoryview | bytearray | bytes],
    device: "str | torch.device | None" = None,
    engine: str | None = None,
) -> Any:
    """Build the array that `to_wire` described, in the engine it came from or in another one.

    The array adopts the buffer and keeps it alive if the buffer is writable and aligned for the type (`aligned_buffer`
    is); do not use the buffer afterwards: JAX and TensorFlow assume it constant, and need it aligned to 64 bytes.
    Otherwise the data is copied once (float8 into TensorFlow too).

    Args:
        header, buffers: the results of `to_wire`, or the same bytes in other memory.
        device: device of the array; default: the CPU, or JAX's default device.
        engine: engine of the array; default: that of the sender. Another engine loses `requires_grad` and Parameter.

    Raises:
        WireError: the header is malformed, or the buffer has another length than it says.
        NotInstalled: the engine is not installed here; the message names the extra.
        ValueError: unknown engine or device.
        TypeError: a buffer is not contiguous bytes, or the engine lacks the element type, also JAX without 64-bit mode.
    """
    head = read_header(header)
    if len(buffers) != 1:
        raise WireError(f"An array has exactly one buffer, got {len(buffers)}.")
    buffer = memoryview(buffers[0])  # a view of our own, which holds the memory if the caller releases the other one
    if buffer.ndim != 1 or buffer.itemsize != 1 or not buffer.c_contiguous:
        try:
            buffer = buffer.cast("B")
        except (TypeError, ValueError) as error:
            layout = f"format {buffer.format!r}, shape {buffer.shape}"
            raise TypeError(f"a buffer must be contiguous bytes, got {layout}") from error
    if buffer.nbytes != head.size_bytes:
        raise WireError(
            f"An array of shape {head.shape} and type {head.dtype.name} has {head.size_bytes} bytes, "
            f"its buffer has {buffer.nbytes}."
        )
    if engine is not None and engine != head.engine:
        if engine not in ENGINES:
            check_engine(engine)
        if engine not in head.dtype.engines:
            raise TypeError(f"{engine} has no element type {head.dtype.name}; read the array as one of {head.engine}")
        head = head._replace(engine=engine, requires_grad=False, is_parameter=False, device="")
    return (_coders.get(head.engine) or _load(head.engine)).decode(head, buffer, device)


def check_loaded(header: bytes | bytearray | memoryview) -> None:
    """Raise WireError for the header of an array whose engine this process has not loaded.

    Used for untrusted senders, because loading an engine takes a second and 100 MB or more.
    """
    engine = read_header(header).engine
    if sys.modules.get(engine) is None:
        raise WireError(
            f"received an array of {engine}, and this process has not loaded {engine}; the sender must not load it.\n"
            f"Import {engine} here before, or send fanwise.tensor.to_numpy(x)"
        )


def is_array(x: object) -> bool:
    """Return whether `to_wire` takes objects of this type. Loads nothing, and takes well under a microsecond.

    `to_wire` may still refuse the contents, such as an array of Python objects.

    >>> is_array([1.0, 2.0])
    False
    """
    return engine_of_type(type(x)) is not None


def engine_of_type(kind: type) -> str | None:
    """Return the engine whose plain array type `kind` is, or None. Only array types are cached."""
    engine = _engine_by_type.get(kind)
    if engine is None and kind.__name__ in _SHORT_NAMES:
        engine = _ENGINE_BY_TYPE_NAME.get((kind.__module__, kind.__qualname__))
        # A user's class may have the same name.
        if engine is None or getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
            return None
        _engine_by_type[kind] = engine
    return engine


def loaded_types(engine: str) -> list[type]:
    """Return the plain array types of an engine that are loaded."""
    names = [name for name, owner in _ENGINE_BY_TYPE_NAME.items() if owner == engine]
    types = [getattr(sys.modules.get(module), name, None) for module, name in names]
    return [kind for kind in types if kind is not None and engine_of_type(kind) == engine]


def _load(engine: str) -> Any:
    """Return the module that encodes and decodes arrays of an engine: torch's, or NumPy's for all others."""
    try:
        exchanges[check_engine(engine)]  # imports the engine
        coder = importlib.import_module(f"..with_{'torch' if engine == 'torch' else 'numpy'}.wire", __package__)
    except (ImportError, ValueError) as error:  # ValueError: sys.modules holds None
        raise NotInstalled(
            f"Received an array of {engine}, but {engine} is not installed in this process. "
            f"Install it: pip install 'fanwise[{engine}]'. Or let the sender send "
            f"fanwise.tensor.to_numpy(x), or read it with from_wire(header, buffers, engine='numpy')"
        ) from error
    return _coders.setdefault(engine, coder)
