"""Which engine an object belongs to, told by its exact type and without loading any engine.

A type of torch or numpy can only exist when that library is loaded, so it is enough to ask `sys.modules`.
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
}
_SHORT_NAMES = frozenset(name for _, name in _ENGINE_BY_TYPE_NAME)
_engine_by_type: dict[type, str] = {}


def engine_of_type(kind: type) -> str | None:
    """The engine whose plain array type `kind` is ("numpy", "torch"), or None."""
    engine = _engine_by_type.get(kind)
    if engine is None and kind.__name__ in _SHORT_NAMES:
        return _look_up(kind)
    return engine


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
