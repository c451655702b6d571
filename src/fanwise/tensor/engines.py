"""The engine of an array, the current engine, and the abilities of each. Imports no engine.

Type names are enough, because an array only exists if its library is loaded. Subclasses, parameters, variables and the
tracers of JAX and TensorFlow belong to their engine. Only types defined by the engines are cached.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from ..base.errors import NotInstalled
from ..base.extras import is_installed


@dataclass(frozen=True, slots=True)
class Engine:
    """Abilities of an engine.

    Args:
        name: name of the engine, and of the library to import.
        autodiff: the engine computes gradients.
        jit: `jit` compiles for this engine.
        dlpack: `convert` keeps arrays on the accelerator between two engines with this flag.
    """

    name: str
    autodiff: bool = False
    jit: bool = False
    dlpack: bool = False


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("torch", autodiff=True, dlpack=True),
        Engine("jax", autodiff=True, jit=True, dlpack=True),
        Engine("tensorflow", autodiff=True),
        Engine("numpy"),
    )
}

# Base classes of arrays: (first part of the module name, class name).
_BASE_CLASSES = {
    ("torch", "Tensor"): "torch",
    ("numpy", "ndarray"): "numpy",
    ("numpy", "generic"): "numpy",
    ("jaxlib", "Array"): "jax",
    ("jax", "Array"): "jax",
    ("jax", "Tracer"): "jax",
    ("tensorflow", "Tensor"): "tensorflow",
    ("tensorflow", "Variable"): "tensorflow",
}
_LIBRARIES = {library for library, _ in _BASE_CLASSES}
_engine_by_type: dict[type, str] = {}
# Return True if `engine_of` has cached a type, so that other tables may keep it too.
is_remembered = _engine_by_type.__contains__
_installed: set[str] = set()
_current: ContextVar[str] = ContextVar("fanwise_engine")


def add_engine(engine: Engine, array_type: type) -> None:
    """Add an engine for arrays of this type. `adapters.register_engine` also adds its functions."""
    library = array_type.__module__.partition(".")[0]
    ENGINES[engine.name] = engine
    _BASE_CLASSES[library, array_type.__name__] = engine.name
    _LIBRARIES.add(library)
    _installed.add(engine.name)
    _engine_by_type[array_type] = engine.name


def engine_of(x: object, /) -> str:
    """Return the name of the engine that made the array x. Costs one dict lookup.

    Raises:
        TypeError: x is not an array.

    >>> import numpy
    >>> engine_of(numpy.zeros(3))
    'numpy'
    """
    kind = type(x)
    return _engine_by_type.get(kind) or engine_of_type(kind)


def engine_of_type(kind: type) -> str:
    """Return the engine of arrays of this type. Raise TypeError if they are not arrays."""
    if (engine := find_engine(kind)) is None:
        remedy = getattr(kind, "NO_ARRAY", "make an array of it with fanwise.tensor.asarray")
        raise TypeError(
            f"expected an array of {', '.join(ENGINES)}, got {kind.__module__}.{kind.__qualname__}; {remedy}"
        )
    return engine


def find_engine(kind: type) -> str | None:
    """Return the engine of arrays of this type; None if they are not arrays."""
    if kind in _engine_by_type:
        return _engine_by_type[kind]
    for base in kind.__mro__:
        # The class name of jax.Array is "_jax.Array" in some versions.
        engine = _BASE_CLASSES.get((base.__module__.partition(".")[0], base.__name__.rpartition(".")[2]))
        if engine is not None:
            if kind.__module__.partition(".")[0] in _LIBRARIES:
                _engine_by_type[kind] = engine
            return engine
    return None


def current_engine() -> str:
    """Return the engine of creation functions: set by `use`, else by FANWISE_ENGINE (read once), else torch.

    Raises:
        ValueError: FANWISE_ENGINE is not the name of an engine.
        NotInstalled: the engine is not installed.
    """
    return _current.get(None) or _default_engine()


@functools.cache
def _default_engine() -> str:
    name = os.environ.get("FANWISE_ENGINE")
    if name is None and not is_installed("torch"):
        installed = [f"FANWISE_ENGINE={engine}" for engine in ENGINES if is_installed(engine)]
        raise NotInstalled(
            "The default engine of fanwise.tensor is torch, which is not installed. "
            f"Install it: pip install 'fanwise[torch]'. Or set an engine that is installed: {', '.join(installed)}."
        )
    return check_engine(name or "torch", source="FANWISE_ENGINE")


@contextlib.contextmanager
def use(engine: str) -> Iterator[None]:
    """Set the current engine inside a with block, in this thread or task only.

    Raises:
        ValueError: the engine is unknown.
        NotInstalled: the engine is not installed.

    >>> with use("numpy"):
    ...     current_engine()
    'numpy'
    """
    token = _current.set(check_engine(engine))
    try:
        yield
    finally:
        _current.reset(token)


def check_engine(name: str, source: str = "the engine") -> str:
    """Return `name` if that engine exists and is installed. Loads nothing.

    Raises:
        ValueError: the engine is unknown.
        NotInstalled: the engine is not installed; the message names the extra.
    """
    if name not in ENGINES:
        from ..base.nearest import must_be_one_of

        raise ValueError(must_be_one_of(source, name, ENGINES))
    if name not in _installed and not is_installed(name):
        raise NotInstalled(
            f"The engine {name} needs the library {name}, which is not installed. "
            f"Install it: pip install 'fanwise[{name}]'."
        )
    _installed.add(name)
    return name
