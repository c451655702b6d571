"""The names of the Python array API standard 2025.12 and their signatures. Knows no engine.

The one place that says what "all functions" are: namespaces list them, the functions of `fanwise.tensor` are made
from their signatures, and the tests go through them. `FUNCTIONS` has the signatures as text, which are written down
once, with types, in `typed.pyi` beside this file, where type checkers read them too. `PARTS` has the names by the part
of the standard: "" is the main one. Its two optional extensions, `linalg` and `fft`, are names alone: each engine has
its own functions of these names, with its own signatures. What is no function stands in `DTYPES` and `CONSTANTS`.
"""

import ast
import inspect
import math
import re
from pathlib import Path

VERSION = "2025.12"

CONSTANTS = {"e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None, "pi": math.pi}

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)
# Not in the standard, and what deep learning computes in; each engine has both.
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
# Those that make an array of no array: they take the current engine.
CREATION = {"arange", "asarray", "empty", "eye", "from_dlpack", "full", "linspace", "ones", "zeros"}
# Those that may be asked about a dtype alone.
ABOUT_DTYPES = {"can_cast", "finfo", "iinfo", "isdtype", "result_type"}


def signature_of(text: str) -> inspect.Signature:
    """What one of the texts in `FUNCTIONS` says, as Python has signatures; without the types."""
    function = ast.parse(f"def function{text}: pass").body[0]
    assert isinstance(function, ast.FunctionDef), text
    said, kinds = function.args, inspect.Parameter
    plain = [*said.posonlyargs, *said.args]
    defaults = [None] * (len(plain) - len(said.defaults)) + list(said.defaults)
    found = [
        kinds(each.arg, kinds.POSITIONAL_OR_KEYWORD, default=_default(value))
        for each, value in zip(plain, defaults, strict=True)
    ]
    for place in range(len(said.posonlyargs)):
        found[place] = found[place].replace(kind=kinds.POSITIONAL_ONLY)
    if said.vararg is not None:
        found.append(kinds(said.vararg.arg, kinds.VAR_POSITIONAL))
    by_keyword = zip(said.kwonlyargs, said.kw_defaults, strict=True)
    found += [kinds(each.arg, kinds.KEYWORD_ONLY, default=_default(value)) for each, value in by_keyword]
    return inspect.Signature(found)


def _default(value: ast.expr | None) -> object:
    return inspect.Parameter.empty if value is None else ast.literal_eval(value)


def of_two_arrays() -> list[str]:
    """The functions of two arrays and nothing else."""
    return [name for name, text in FUNCTIONS.items() if re.fullmatch(r"\(x1: [^,]*, x2: [^,]*, /\)", text)]
