"""Which objects can go as bare memory: told by their exact type, without loading any engine.

A type of an engine can only exist when its library is loaded, so it is enough to ask `sys.modules`.
Only the plain types count. A subclass (a masked array, a distributed tensor, a fake tensor) means something
that its memory alone does not hold, so it is not an array here and travels as its own pickling says.
Invariant: only types that are arrays are remembered, so classes made and dropped by user code are not kept alive.
"""

import sys

_ENGINE_BY_TYPE_NAME = {
    ("numpy", "ndarray"): "numpy",
    ("numpy", "memmap"): "numpy",
    ("torch", "Tensor"): "torch",
    ("torch.nn.parameter", "Parameter"): "torch",
    ("jaxlib._jax", "ArrayImpl"): "jax",
    ("jaxlib.xla_extension", "ArrayImpl"): "jax",  # where it was before jaxlib 0.6
    ("tensorflow.python.framework.ops", "EagerTensor"): "tensorflow",
}
_SHORT_NAMES = frozenset(name for _, name in _ENGINE_BY_TYPE_NAME)
_engine_by_type: dict[type, str] = {}


def engine_of_type(kind: type) -> str | None:
    """The engine whose plain array type `kind` is ("numpy", "torch", "jax", "tensorflow"), or None."""
    engine = _engine_by_type.get(kind)
    if engine is None and kind.__name__ in _SHORT_NAMES:
        return _look_up(kind)
    return engine


def loaded_types(engine: str) -> list[type]:
    """The plain array types of an engine, as far as it is loaded."""
    found = (
        getattr(sys.modules.get(module), name, None)
        for (module, name), of in _ENGINE_BY_TYPE_NAME.items()
        if of == engine
    )
    return [kind for kind in found if kind is not None and engine_of_type(kind) == engine]


def is_array(x: object) -> bool:
    """Whether `to_wire` takes objects of this type. Loads nothing, costs well under a microsecond.

    True says nothing of the contents: `to_wire` still refuses, say, an array of Python objects.

    >>> is_array([1.0, 2.0])
    False
    """
    return engine_of_type(type(x)) is not None


def _look_up(kind: type) -> str | None:
    module_name, name = kind.__module__, kind.__qualname__
    engine = _ENGINE_BY_TYPE_NAME.get((module_name, name))
    # A user's class may carry the same name; only the library's own counts.
    if engine is None or getattr(sys.modules.get(module_name), name, None) is not kind:
        return None
    _engine_by_type[kind] = engine
    return engine
