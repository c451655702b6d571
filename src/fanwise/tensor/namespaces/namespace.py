"""`namespace("torch")`: the standard's functions of one engine, as an object that can be pickled.

Each engine has one object. Creating it does not import the engine; the first attribute does. Names that
`with_<engine>/namespace.py` does not list do not exist, so portable code cannot use them by mistake.
"""

from typing import Any

from ..adapters import standards
from ..engines import check_engine, engine_of
from .standard import PARTS, VERSION

_namespaces: dict[tuple[str, str], "Namespace"] = {}


def namespace(x: object, /) -> "Namespace":
    """Return the functions of the Python array API standard for the engine of x or the engine named x.

    The functions take and return the engine's own arrays. Use it where one piece of code serves every engine:

    >>> import numpy
    >>> xp = namespace(numpy.ones(3))
    >>> xp.sum(xp.asarray([1.0, 2.0]))
    np.float32(3.0)

    A namespace can be pickled, is the same object everywhere in a process, and imports its engine on first use.
    Floats made from Python numbers are float32 on every engine.

    Args:
        x: an array of any engine, or "torch", "jax", "tensorflow" or "numpy".

    Raises:
        TypeError: x is not an array of an engine.
        ValueError: there is no engine of that name.
        NotInstalled: the engine is not installed; the message names the extra.
    """
    return part_of(check_engine(x) if isinstance(x, str) else engine_of(x), "")


def part_of(engine: str, part: str) -> "Namespace":
    """Return one part of the engine's namespace; "" is the main part."""
    try:
        return _namespaces[engine, part]
    except KeyError:
        return _namespaces.setdefault((engine, part), Namespace(engine, part))


class Namespace:
    """The functions of the array API standard on one engine; created by `namespace`.

    Its attributes are the functions, constants and dtypes of the standard 2025.12 that the engine has, `float16` and
    `bfloat16`, and the extensions `linalg` and `fft`; `dir()` lists all.
    """

    __array_api_version__ = VERSION
    engine: str

    def __init__(self, engine: str, part: str = "") -> None:
        self.engine = engine
        self._part = part
        self._names: dict[str, Any] = {}
        self.__name__ = ".".join(["fanwise", "tensor", engine, *([part] if part else [])])

    # Called for names that are not in the object's dict: until `_load` has added all names of the engine.
    def __getattr__(self, name: str) -> Any:
        if self._names or (name.startswith("__") and name != "__array_namespace_info__"):
            raise AttributeError(
                f"{self!r} has no {name!r}; it has functions of the array API standard {VERSION}. "
                f"Use other functions of {self.engine} directly"
            )
        self._load()
        return getattr(self, name)

    def _load(self) -> None:
        extensions = {} if self._part else {part: part_of(self.engine, part) for part in PARTS if part}
        names = {"__array_api_version__": VERSION} | extensions | standards[self.engine].names(self._part)
        self.__dict__.update(names)
        self._names = names

    def __dir__(self) -> list[str]:
        if not self._names:
            self._load()
        return sorted(self._names)

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return part_of, (self.engine, self._part)

    def __repr__(self) -> str:
        return f"namespace({self.engine!r})" + (f".{self._part}" if self._part else "")
