"""`namespace("torch")`: the standard's functions of one engine, as an object that can be pickled.

    namespace(x or name)  ->  Namespace  --first use-->  names(part) of with_<engine>/namespace.py

`names` gives for "", "linalg" and "fft" a dict from each name of the
standard that the engine has to what it means there, `__array_namespace_info__` and dtypes included. Whatever it
does not list does not exist in the namespace, so that portable code cannot use it by mistake.
Knows nothing of dispatch. Invariant: one object for an engine, and making it loads no engine.
"""

from typing import Any

from ..adapters import standards
from ..engines import check_engine, engine_of
from .standard import PARTS, VERSION

_spaces: dict[tuple[str, str], "Namespace"] = {}


def namespace(x: object, /) -> "Namespace":
    """The functions of the Python array API standard, for the engine of x or the engine named x.

    The functions take and return the engine's own arrays. Use it where one piece of code serves every engine:

    >>> import numpy
    >>> xp = namespace(numpy.ones(3))
    >>> xp.sum(xp.asarray([1.0, 2.0]))
    np.float32(3.0)

    A namespace can be pickled, compares equal to itself in any process, and loads its engine on first use.
    Floats made of Python numbers are float32 on every engine.

    Args:
        x: an array of any engine, or "torch", "jax", "tensorflow" or "numpy".

    Raises:
        TypeError: x is no array of an engine.
        ValueError: x names no engine.
        NotInstalled: the engine it names is not installed; the message names the extra.
    """
    engine = check_engine(x) if isinstance(x, str) else engine_of(x)
    return part_of(engine, "")


def part_of(engine: str, part: str) -> "Namespace":
    """The one object for that part of the engine's namespace; "" is the main part."""
    try:
        return _spaces[engine, part]
    except KeyError:
        return _spaces.setdefault((engine, part), Namespace(engine, part))


class Namespace:
    """The array API standard, spoken by one engine; made by `namespace`.

    Its attributes are the functions, constants and dtypes of the standard 2025.12, `float16` and `bfloat16`, and the
    extensions `linalg` and `fft`, with what this engine has by the standard's names; `dir()` lists all.
    """

    __array_api_version__ = VERSION
    engine: str

    def __init__(self, engine: str, part: str = "") -> None:
        self.engine = engine
        self._part = part
        self._names: dict[str, Any] | None = None
        self.__name__ = ".".join(["fanwise", "tensor", engine, *([part] if part else [])])

    # Called for what is not in the object's own dict, so once: afterwards every name is there.
    def __getattr__(self, name: str) -> Any:  # Any: functions, numbers and dtypes of engines without a common type
        if name.startswith("__") and name != "__array_namespace_info__":
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        try:
            return self._loaded()[name]
        except KeyError:
            raise AttributeError(self._missing(name)) from None

    def _loaded(self) -> dict[str, Any]:
        if self._names is None:
            names = standards[self.engine].names(self._part)
            if not self._part:
                names |= {part: part_of(self.engine, part) for part in PARTS if part}
            self.__dict__.update(names)
            self._names = names
        return self._names

    def _missing(self, name: str) -> str:
        if name in PARTS[self._part]:
            return f"{self!r} has no {name!r}: use what {self.engine} itself has for it, or another engine"
        where = f"{self._part!r} of the array API standard {VERSION}" if self._part else f"the standard {VERSION}"
        return f"{self!r} has no {name!r}: it is not in {where}. Functions of {self.engine} alone are used from there"

    def __dir__(self) -> list[str]:
        return sorted([*self._loaded(), "__array_api_version__"])

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:  # Any: a function that returns the one object
        return part_of, (self.engine, self._part)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Namespace):
            return NotImplemented
        return (self.engine, self._part) == (other.engine, other._part)

    def __hash__(self) -> int:
        return hash((self.engine, self._part))

    def __repr__(self) -> str:
        return f"namespace({self.engine!r})" + (f".{self._part}" if self._part else "")
