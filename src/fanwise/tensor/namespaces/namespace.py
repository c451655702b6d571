"""Names and signatures of the Python array API standard 2025.12, and `namespace("torch")`: its functions of one engine.

`FUNCTIONS` has the signatures as text. They are read from `typed.pyi`, which type checkers read too. `PARTS` has the
names by part of the standard: "" is the main part. The extensions `linalg` and `fft` are names only, because each
engine has its own functions and signatures there.

Each engine has one namespace. Names that `with_<engine>/namespace.py` does not list do not exist, so portable code
cannot use them by mistake.
"""

import functools
import math
import re
from pathlib import Path
from typing import Any

from ..adapters import standards
from ..engines import check_engine, engine_of

VERSION = "2025.12"

CONSTANTS = {"e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None, "pi": math.pi}

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)
# Not in the standard, but every engine has them.
EXTRA_DTYPES = ("float16", "bfloat16")

FUNCTIONS: dict[str, str] = dict(
    re.findall(r"^def (\w+)(\(.*?\)) -> ", Path(__file__).with_name("typed.pyi").read_text(), re.MULTILINE | re.DOTALL)
)
PARTS = {
    "": tuple(FUNCTIONS),
    "linalg": (
        *("cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul", "matrix_norm"),
        *("matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd"),
        *("svdvals", "tensordot", "trace", "vecdot", "vector_norm"),
    ),
    "fft": (
        *("fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn"),
        *("rfft", "rfftfreq", "rfftn"),
    ),
}
# Functions without array arguments, which use the current engine.
CREATION = {"arange", "asarray", "empty", "eye", "from_dlpack", "full", "linspace", "ones", "zeros"}
# Functions that accept dtypes without arrays.
OF_DTYPES = {"can_cast", "finfo", "iinfo", "isdtype", "result_type"}


def of_two_arrays() -> list[str]:
    """Return the names of the functions whose only parameters are two arrays."""
    return [name for name, text in FUNCTIONS.items() if re.fullmatch(r"\(x1: [^,]*, x2: [^,]*, /\)", text)]


def namespace(x: object, /) -> "Namespace":
    """Return the functions of the Python array API standard for the engine of x or the engine named x.

    The functions take and return the engine's own arrays. Use it where one piece of code serves every engine:

    >>> import numpy
    >>> xp = namespace(numpy.ones(3))
    >>> xp.sum(xp.asarray([1.0, 2.0]))
    np.float32(3.0)

    A namespace can be pickled, and is the same object everywhere in a process. Floats made from Python numbers are
    float32 on every engine.

    Args:
        x: an array of any engine, or "torch", "jax", "tensorflow" or "numpy".

    Raises:
        TypeError: x is not an array of an engine.
        ValueError: there is no engine of that name.
        NotInstalled: the engine is not installed; the message names the extra.
    """
    result: Namespace = part_of(check_engine(x) if isinstance(x, str) else engine_of(x))
    return result


@functools.cache
def part_of(engine: str, part: str = "") -> Any:
    """Return one part of the engine's namespace; "" is the main part."""
    return getattr(part_of(engine), part) if part else Namespace(engine)


class Namespace:
    """The functions of the array API standard on one engine; created by `namespace`.

    Its attributes are the functions, constants and dtypes of the standard 2025.12 that the engine has, `float16` and
    `bfloat16`, and the extensions `linalg` and `fft`; `dir()` lists all.
    """

    __array_api_version__ = VERSION
    engine: str

    def __init__(self, engine: str, part: str = "") -> None:
        if not part:
            self.__dict__.update({extension: Namespace(engine, extension) for extension in PARTS if extension})
        self.__dict__.update(standards[engine].names(part))
        self.engine = engine
        self._part = part
        self.__name__ = ".".join(["fanwise", "tensor", engine, *([part] if part else [])])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self!r} has no {name!r}; it has functions of the array API standard {VERSION}. "
            f"Use other functions of {self.engine} directly"
        )

    def __dir__(self) -> list[str]:
        return sorted({"__array_api_version__", *self.__dict__} - {"engine", "_part", "__name__"})

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return part_of, (self.engine, self._part) if self._part else (self.engine,)

    def __repr__(self) -> str:
        return f"namespace({self.engine!r})" + (f".{self._part}" if self._part else "")
