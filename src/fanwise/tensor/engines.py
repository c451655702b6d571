"""Engines: which one an array belongs to, which one is current, and what each can do. Loads none of them.

    engine_of(x)         "torch", "jax", "tensorflow" or "numpy": the library that made x
    with use("jax"):     creation functions make arrays of jax, in this thread or task
    FANWISE_ENGINE=jax   the same for the whole process; without it the engine is torch

An array can only exist when its library is loaded, so `engine_of` looks at types alone. Subclasses, parameters,
variables, and what stands for an array while jax or TensorFlow trace a function belong to their engine too.
Invariant: only types that the engines define are remembered, so classes made and dropped by user code are not
kept alive by asking.
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
    """What an engine can do.

    Args:
        name: as everywhere in this layer, and the name of the library's import.
        autodiff: whether it computes gradients.
        jit: whether `jit` compiles for it. torch is quick without, and torch.compile takes a minute.
        dlpack: whether `convert` hands its arrays on an accelerator on there, to other engines of this kind.
        extra: the extra of fanwise that installs it, empty if it is always installed.
    """

    name: str
    autodiff: bool
    jit: bool
    dlpack: bool
    extra: str = ""


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("torch", autodiff=True, jit=False, dlpack=True, extra="torch"),
        Engine("jax", autodiff=True, jit=True, dlpack=True, extra="jax"),
        Engine("tensorflow", autodiff=True, jit=True, dlpack=False, extra="tensorflow"),
        Engine("numpy", autodiff=False, jit=False, dlpack=False),
    )
}

# The types whose subclasses are arrays, as (first part of the module's name, name of the class).
_ROOTS = {
    ("torch", "Tensor"): "torch",
    ("numpy", "ndarray"): "numpy",
    ("numpy", "generic"): "numpy",
    ("jaxlib", "Array"): "jax",
    ("jax", "Array"): "jax",
    ("jax", "Tracer"): "jax",
    ("tensorflow", "Tensor"): "tensorflow",
    ("tensorflow", "Variable"): "tensorflow",
}
_LIBRARIES = {library for library, _ in _ROOTS}
_engine_by_type: dict[type, str] = {}
_installed: set[str] = set()
_current: ContextVar[str] = ContextVar("fanwise_engine")


def add_engine(engine: Engine, array_type: type) -> None:
    """Add an engine whose arrays are of this type; `adapters.register_engine` adds its functions, too."""
    library = array_type.__module__.partition(".")[0]
    ENGINES[engine.name] = engine
    _ROOTS[library, array_type.__name__] = engine.name
    _LIBRARIES.add(library)
    _installed.add(engine.name)
    _engine_by_type[array_type] = engine.name


def engine_of(x: object, /) -> str:
    """The name of the engine that made the array x. Costs one look into a dict.

    Raises:
        TypeError: x is no array of an engine; the message says how to make one.

    >>> import numpy
    >>> engine_of(numpy.zeros(3))
    'numpy'
    """
    try:
        return _engine_by_type[type(x)]
    except KeyError:
        return _look_up(type(x))


def is_array_type(kind: type) -> bool:
    """Whether objects of this type are arrays of an engine, as `engine_of` sees it."""
    return kind in _engine_by_type or _find(kind) is not None


def is_remembered(kind: type) -> bool:
    """Whether this type is one that an engine defines and `engine_of` has met: safe to keep in a table."""
    return kind in _engine_by_type


def _look_up(kind: type) -> str:
    engine = _find(kind)
    if engine is None:
        remedy = getattr(kind, "NO_ARRAY", "make an array of it with fanwise.tensor.asarray")
        raise TypeError(
            f"expected an array of {', '.join(ENGINES)}, got {kind.__module__}.{kind.__qualname__}; {remedy}"
        )
    if kind.__module__.partition(".")[0] in _LIBRARIES:
        _engine_by_type[kind] = engine
    return engine


def _find(kind: type) -> str | None:
    for base in kind.__mro__:
        # jax.Array calls itself "jaxlib._jax.Array" in some versions.
        engine = _ROOTS.get((base.__module__.partition(".")[0], base.__name__.rpartition(".")[2]))
        if engine is not None:
            return engine
    return None


def current_engine() -> str:
    """The engine that creation functions use: of `use`, else of FANWISE_ENGINE, else torch.

    The environment is read once, when first asked.

    Raises:
        ValueError: FANWISE_ENGINE names no engine.
        NotInstalled: that engine is not installed.
    """
    return _current.get(None) or _of_environment()


# Read once: asking the environment costs 1 us, and every creation function asks for the engine.
@functools.cache
def _of_environment() -> str:
    name = os.environ.get("FANWISE_ENGINE")
    if name is None and not is_installed("torch"):
        there = [f"FANWISE_ENGINE={engine}" for engine in ENGINES if is_installed(engine)]
        raise NotInstalled(
            "fanwise.tensor makes arrays of torch where nothing else is said, and torch is not installed. "
            f"Install it: pip install 'fanwise[torch]'. Or name an engine that is here: {', '.join(there)}."
        )
    return check_engine(name or "torch", told_by="FANWISE_ENGINE")


@contextlib.contextmanager
def use(engine: str) -> Iterator[None]:
    """Make `engine` the current one inside a with block, in this thread or task only.

    Raises:
        ValueError: there is no such engine.
        NotInstalled: it is not installed; the message names the extra.

    >>> with use("numpy"):
    ...     current_engine()
    'numpy'
    """
    token = _current.set(check_engine(engine))
    try:
        yield
    finally:
        _current.reset(token)


def check_engine(name: str, told_by: str = "the engine") -> str:
    """`name` if there is such an engine and it is installed; nothing is loaded.

    Raises:
        ValueError: there is no such engine.
        NotInstalled: it is not installed; the message names the extra.
    """
    engine = ENGINES.get(name)
    if engine is None:
        from ..base.nearest import must_be_one_of

        raise ValueError(must_be_one_of(told_by, name, ENGINES))
    if name not in _installed and not is_installed(name):
        raise NotInstalled(
            f"The engine {name} is asked for, and the library {name} is not installed. "
            f"Install it: pip install 'fanwise[{engine.extra}]'."
        )
    _installed.add(name)
    return name
