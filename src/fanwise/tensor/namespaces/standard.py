"""Names and signatures of the Python array API standard 2025.12.

`FUNCTIONS` has the signatures as text. They are read from `typed.pyi`, which type checkers read too. `PARTS` has the
names by part of the standard: "" is the main part. The extensions `linalg` and `fft` are names only, because each
engine has its own functions and signatures there.
"""

import math
import re
from pathlib import Path

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
ABOUT_DTYPES = {"can_cast", "finfo", "iinfo", "isdtype", "result_type"}


def of_two_arrays() -> list[str]:
    """Return the names of the functions whose only parameters are two arrays."""
    return [name for name, text in FUNCTIONS.items() if re.fullmatch(r"\(x1: [^,]*, x2: [^,]*, /\)", text)]
