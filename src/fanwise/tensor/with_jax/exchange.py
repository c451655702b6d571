"""JAX arrays in the exchange.

JAX takes its arrays for constants: what it computes may read them at any time. So memory that somebody may write to
comes in as a copy, unless copy=False asked for sharing, and goes out read-only. A donated array is copied by JAX while
a view of it is alive, so that views stay as they are.

On an accelerator JAX only queues its work, and may let memory go that queued work still reads
(https://github.com/ROCm/xla/pull/979). So a copy is JAX's own, and waited for while the memory is still borrowed.

Without 64 bits (`jax_enable_x64`) JAX makes float32 of float64 in silence; here that is an error.
"""

import functools
import importlib
import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from ..adapters import Exported, Layout
from ..exchange.refusals import cannot_share, no_such_type
from ..with_numpy.exchange import Array, Dtype, aligned_copy, is_aligned, layout_of_array, locked, why_not_aligned
from .devices import device_of

_config: Any = jax.config  # Any: its settings are made when it is loaded
with jax.ensure_compile_time_eval():  # this file may be loaded while JAX traces a function
    _PlainArray = type(jax.numpy.zeros(()))
# Any: it has moved.
_enable_x64: Any = (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64
_NARROW = {
    np.dtype(wide): narrow
    for wide, narrow in (("f8", "float32"), ("i8", "int32"), ("u8", "uint32"), ("c16", "complex64"))
}
_KINDS = {np.dtype(code) for code in "?ef" + "bBhHiI" + "F"} | set(_NARROW)
_KINDS |= {
    np.dtype(getattr(jax.numpy, name))
    for name in (
        *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
    )
    if hasattr(jax.numpy, name)
}


def export_memory(x: Any, copy: bool | None) -> Exported:  # Any: jax.Array, or a tracer
    """A read-only view of the array's memory, or of a copy when it is not one piece on a CPU."""
    if type(x) is not _PlainArray:
        raise _refused(x)
    array = _seen(x)
    if copy is False and array.size and array.ctypes.data != _address_of(x):
        raise cannot_share(f"This JAX array of type {array.dtype}", "its elements are not one piece of memory on a CPU")
    return array, "immutable"


def import_memory(exported: Exported, copy: bool | None) -> jax.Array:
    """A JAX array on the default device, over the array's memory where that may be."""
    array, kind = exported
    if kind == "private":
        return adopt(array)
    # As in `adopt`: beyond this nobody looks, and JAX would read past the end of what it had narrowed.
    check_type(array.dtype)
    if copy is False:
        return _shared(array)
    if copy or kind == "mutable":
        return _adopt_aligned(aligned_copy(array))
    return adopt(array)


def accelerator_of(x: Any) -> str | None:  # Any: as above
    """The name of its one device, if it lies in the memory of that and that is not a CPU."""
    if jax.local_devices()[0].platform == "cpu" or type(x) is not _PlainArray or x.is_deleted():
        return None
    if len(x.devices()) > 1 or x.sharding.memory_kind in ("pinned_host", "unpinned_host"):
        return None
    name = device_of(x)
    return None if name.startswith("cpu") else name


def to_dlpack(x: jax.Array, copy: bool | None) -> jax.Array:
    """The array itself, which knows the protocol."""
    return x


def from_dlpack(lent: Any, copy: bool | None) -> jax.Array | None:  # Any: what another engine's `to_dlpack` made
    """A JAX array over that memory, or a copy, bound to its device; None where JAX or DLPack has no such type.

    Raises TypeError as `check_type` does.
    """
    try:
        with _enable_x64(True):  # nothing is narrowed before it is seen
            shared = _adopted_there(lent, copy)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if copy is False:
            raise cannot_share("This array", f"JAX does not take its memory: {error}") from error
        return None
    check_type(shared.dtype)
    if copy is False:
        return shared
    with jax.ensure_compile_time_eval():
        copy_of_it: jax.Array = shared.copy().block_until_ready()
    return copy_of_it


def copied(x: Any) -> Any:  # Any: jax.Array, or a tracer
    """A copy on the same device."""
    if type(x) is _PlainArray:
        if x.is_deleted():
            raise _deleted(x)
        # Quicker than JAX's own way; but of several devices the copy shall be bound to that of x as x is.
        if x.is_fully_addressable and len(jax.local_devices()) == 1 and _default_device().platform == "cpu":
            return _copied_quickly(_seen(x))
    return jax.numpy.array(x, copy=True)  # what has no values yet goes this way too


def layout_of(x: Any) -> Layout:  # Any: as above
    """Where its elements lie, on whatever device."""
    if type(x) is not _PlainArray:
        raise _refused(x)
    address = _address_of(x)
    if address and all(device.platform == "cpu" for device in x.devices()):
        return layout_of_array(_seen(x))._replace(address=address)
    # On accelerators JAX keeps arrays in C order; to look at the values would fetch them.
    lengths = [*x.shape[1:], x.dtype.itemsize]
    strides = tuple(itertools.accumulate(reversed(lengths), operator.mul))[::-1][: x.ndim]
    return Layout(address, x.shape, strides, x.dtype.itemsize)


def adopt(array: Array) -> jax.Array:
    """A JAX array over memory that nobody will ever change. Copied if it does not lie as JAX needs it.

    Raises TypeError as `check_type` does.
    """
    check_type(array.dtype)
    return _adopt_aligned(array if is_aligned(array) else aligned_copy(array))


def check_type(dtype: Dtype) -> None:
    """Raises TypeError if JAX has no such element type, or not as it is set."""
    if dtype in _NARROW:
        if not _config.jax_enable_x64:
            narrow = _NARROW[dtype]
            raise TypeError(
                f"JAX is set to 32 bits here and would make {narrow} of {dtype.name} in silence. "
                f"Turn 64 bits on before anything else, jax.config.update('jax_enable_x64', True), "
                f"or change the array yourself: x.astype({narrow!r})"
            )
    elif dtype not in _KINDS:
        raise no_such_type("JAX", dtype.name, "x.astype('float32')")


def _adopt_aligned(array: Array) -> jax.Array:
    device = _default_device()
    return _put(array, device) if device.platform == "cpu" else jax.device_put(array)


def _adopted_there(lent: Any, copy: bool | None) -> jax.Array:  # Any: as in `from_dlpack`
    with jax.ensure_compile_time_eval():
        x: jax.Array = jax.dlpack.from_dlpack(lent, copy=False if copy is False else None)
        return x


def _copied_quickly(array: Array) -> jax.Array:
    copy = aligned_copy(array)
    if array.dtype in _NARROW:  # made while 64 bits were on; they need not be now
        with _enable_x64(True):
            return _adopt_aligned(copy)
    return _adopt_aligned(copy)


def _shared(array: Array) -> jax.Array:
    what = f"An array of shape {array.shape} and dtype {array.dtype}"
    device = _default_device()
    if not array.size:
        return adopt(array)
    if device.platform != "cpu":
        raise cannot_share(what, f"JAX's default device is {device}, not the CPU")
    if not is_aligned(array):
        raise cannot_share(what, f"{why_not_aligned(array)}, and JAX takes no other (see empty_aligned)")
    x = _put(array, device)
    if _address_of(x) != array.ctypes.data:
        raise cannot_share(what, "JAX keeps arrays of this type in another form")
    return x


def _seen(x: jax.Array) -> Array:
    try:
        array = np.asarray(x)
    except RuntimeError as error:
        if x.is_deleted():
            raise _deleted(x) from error
        raise ValueError(f"This JAX array of shape {x.shape} cannot be fetched to this process: {error}") from error
    # Gathered from several devices it belongs to itself, and its flag could be lifted.
    return array if array.base is not None else locked(array)


def _deleted(x: jax.Array) -> ValueError:
    return ValueError(
        f"This JAX array of shape {x.shape} was deleted, or donated to a jitted function (donate_argnums), "
        f"and its memory is gone. Convert it before, or use what the function returned."
    )


def _address_of(x: jax.Array) -> int:
    """Of its memory; 0 when that is not one piece."""
    if x.is_deleted():
        raise _deleted(x)
    try:
        return int(x.unsafe_buffer_pointer())
    except RuntimeError:  # spread over several devices
        return 0


def _default_device() -> jax.Device:
    device = _config.jax_default_device or jax.local_devices()[0]
    return jax.local_devices(backend=device)[0] if isinstance(device, str) else device


def _put_by_public_way(array: Array, device: jax.Device) -> jax.Array:
    # JAX shares what is aligned, as numpy's arrays are now and then. With no device named the result is free to move.
    with jax.ensure_compile_time_eval(), jax.default_device(device):
        x: jax.Array = jax.device_put(array, may_alias=True)
        return x


def _find_put() -> Callable[[Array, jax.Device], jax.Array]:
    """What JAX's own `device_put` ends in, without the 20 to 50 us before it; the public way where that has changed."""
    try:
        from jax._src.core import ShapedArray
        from jax._src.lib import xla_client  # type: ignore[attr-defined]  # not promised to be there

        shaped = functools.lru_cache(4096)(ShapedArray)
        sharding = functools.lru_cache(SingleDeviceSharding)
        put = xla_client.batched_device_put

        def put_directly(array: Array, device: jax.Device) -> jax.Array:
            x: jax.Array = put(shaped(array.shape, array.dtype), sharding(device), [array], [device], False)
            return x

        if put_directly(np.arange(2, dtype=np.int8), _default_device()).tolist() == [0, 1]:
            return put_directly
    except Exception:  # any: it is not promised to be there
        pass
    return _put_by_public_way


def _refused(x: Any) -> TypeError:  # Any: as in export_memory
    what = f"{type(x).__module__}.{type(x).__qualname__}"
    if isinstance(x, jax.core.Tracer):
        return TypeError(
            f"This array stands for one of shape {x.shape} while JAX traces a function (jit, grad, vmap): it has no "
            f"values yet. Convert outside of the function, or inside of jax.pure_callback"
        )
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        return TypeError("Random keys of JAX are no numbers. Convert jax.random.key_data(key)")
    return TypeError(f"{what} is no plain JAX array. Convert jax.numpy.asarray(x)")


_put = _find_put()
