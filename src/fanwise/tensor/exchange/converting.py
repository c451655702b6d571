"""`convert` and its short forms: which way an array goes, and when memory is shared.

    x --export_memory of its engine--> numpy array over the memory --import_memory of the other--> y
    x --to_dlpack------------------> the memory on an accelerator --from_dlpack--------------> y    torch and JAX

With copy=None memory is shared when nobody can notice, or where both sides expect it:

    to:            numpy              torch               jax, tensorflow
    from numpy     x itself           shared; a copy if   a copy: x could be written to
                                      read-only
    from torch     shared             x itself            a copy: x could be written to
    from jax, tf   read-only view     a copy: torch has   shared
                                      no read-only

copy=False shares in all of these, or raises with the reason: then who writes to one side changes the other, also a
JAX array, which JAX takes for constant. Only read-only numpy memory is never made writable. copy=True always copies,
and the copy can be written to where its engine can write. All copies are aligned to 64 bytes.
The table holds on an accelerator, too. There both engines queue work that neither sees of the other, so a copy is made
when `convert` returns: who then writes to x, or frees it, disturbs no copying. After copy=False wait for one engine
before the other writes to the memory, or lets it go.
Knows no engine: what serves each is in `adapters`.
"""

from typing import TYPE_CHECKING, Any, cast

from ..adapters import DLPackExchange, exchanges
from ..engines import ENGINES, check_engine, current_engine, engine_of
from ..placement import canonical, has_device, to_device
from .refusals import cannot_share

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]  # Any: shape and element type are known only when it runs

# A set: every conversion asks, and most of them take a few microseconds.
_BY_DLPACK = frozenset(name for name, engine in ENGINES.items() if engine.dlpack)


def convert(
    x: Any,  # Any: an array of any engine
    engine: str,
    copy: bool | None = None,
    device: object = None,
) -> Any:  # Any: an array of `engine`
    """The array x as one of another engine: the same shape, element type and values, bit for bit.

    A plain array of `engine` is returned as it is. No engine changes the element type on the way: where the other has
    no such type, also where JAX would make float32 of float64, this raises. What cannot be used without harm by the
    other engine (memory that is not aligned, negative strides, another byte order) is copied.

    Args:
        x: an array of any engine: Parameters and Variables too (their value); no list, no tree (use `optree.tree_map`).
        engine: "torch", "jax", "tensorflow" or "numpy".
        copy: None shares memory when nobody can notice: a table is at the top of this module. False shares, or raises
            if it cannot be; then writing to one side changes the other, which JAX and TensorFlow do not expect.
            True always copies.
        device: where the result shall be, by a name as `devices` lists them ("cpu", "cuda:0"). None: where x is if
            it is of this engine; between torch and JAX also where x is on an accelerator that both can use, and then
            nothing goes through main memory; else on the CPU, for JAX on its default device. Blocks until a copy from
            or on an accelerator is made.

    Raises:
        TypeError: x is no array, or has no memory to hand out (sparse, quantized, strings, a value inside a traced
            function), or wants gradients; or the engine lacks the element type. The message says what to do.
        ValueError: the engine or device is unknown; copy=False, and it needs a copy; a JAX array that was deleted.
        NotInstalled: the engine is not installed; the message names the extra.

    >>> import numpy, torch
    >>> x = numpy.zeros(3)
    >>> y = convert(x, "torch")
    >>> y[0] = 7  # torch and numpy share
    >>> x
    array([7., 0., 0.])
    """
    source = engine_of(x)
    taker = exchanges.get(engine) or exchanges[check_engine(engine)]
    if source == engine:
        y = taker.copied(x) if copy else x
    else:
        y = None
        if source in _BY_DLPACK and engine in _BY_DLPACK and (place := _common_accelerator(x, source, engine)):
            device = place if device is None else device
            if canonical(str(device)) != "cpu":
                y = _by_dlpack(x, source, engine, copy)
        if y is None:
            y = taker.import_memory(exchanges[source].export_memory(x, copy), copy)
    return y if device is None else _on(y, device, copy)


def to_numpy(x: Any, copy: bool | None = None) -> "Array":  # Any: an array of any engine
    """The array x as a numpy array: `convert(x, "numpy", copy)`, except that a numpy scalar becomes an array too.

    The memory of a torch tensor on a CPU is shared; that of JAX and TensorFlow is shown as a read-only view. Give
    copy=True for an array of your own. bfloat16 and the float8 types become those of ml_dtypes.

    Raises:
        TypeError, ValueError: as `convert`.

    >>> import torch
    >>> to_numpy(torch.arange(3))
    array([0, 1, 2])
    """
    import numpy as np

    return np.asanyarray(convert(x, "numpy", copy))


def from_numpy(x: "Array", engine: str | None = None, copy: bool | None = None) -> Any:  # Any: of that engine
    """The numpy array x as an array of `engine`, or of the current one: `convert(x, engine, copy)`.

    Raises:
        TypeError: x is no numpy array, or its element type is one that the engine lacks.
        ValueError, NotInstalled: as `convert`.
    """
    if engine_of(x) != "numpy":
        raise TypeError(f"from_numpy takes numpy arrays, got one of {engine_of(x)}; use fanwise.tensor.convert")
    return convert(x, current_engine() if engine is None else engine, copy)


def _common_accelerator(x: Any, source: str, engine: str) -> str | None:  # Any: as in `convert`
    giver: Any = exchanges[source]  # Any: it has DLPack, as `cast` would say in a tenth of a microsecond
    place: str | None = giver.accelerator_of(x)
    return place if place and has_device(engine, place) else None


def _by_dlpack(x: Any, source: str, engine: str, copy: bool | None) -> Any:  # Any: as in `convert`
    giver, taker = (cast(DLPackExchange, exchanges[name]) for name in (source, engine))
    return taker.from_dlpack(giver.to_dlpack(x, copy), copy)


def _on(y: Any, device: object, copy: bool | None) -> Any:  # Any: as in `convert`
    moved = to_device(y, device)
    if copy is False and moved is not y:
        raise cannot_share(f"This array of {engine_of(y)}", f"it has to be moved to {device}")
    return moved
