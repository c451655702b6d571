"""The names of the Python array API standard 2025.12 and their signatures. A quiet file: text, no engine.

The one place that says what "all functions" are: namespaces list them, the functions of `fanwise.tensor` are made
from their signatures, and the tests go through them. `PARTS` has the main namespace under "" and the extensions
under "linalg" and "fft". What is no function stands in `DTYPES` and `CONSTANTS`.
The signatures are those of https://data-apis.org/array-api/2025.12/ in Python's own spelling.
"""

import ast
import inspect
import math

VERSION = "2025.12"

CONSTANTS = {"e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None, "pi": math.pi}

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)
# Not in the standard, and what deep learning computes in; each engine has both.
EXTRA_DTYPES = ("float16", "bfloat16")

_OF_ONE = """
abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite isinf isnan
log log10 log1p log2 logical_not negative positive real reciprocal round sign signbit sin sinh sqrt square tan tanh
trunc matrix_transpose nonzero unique_all unique_counts unique_inverse unique_values
"""
_OF_TWO = """
add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal
floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor maximum
minimum multiply nextafter not_equal pow remainder subtract matmul
"""
_OTHERS = """
all(x, /, *, axis=None, keepdims=False)
any(x, /, *, axis=None, keepdims=False)
arange(start, /, stop=None, step=1, *, dtype=None, device=None)
argmax(x, /, *, axis=None, keepdims=False)
argmin(x, /, *, axis=None, keepdims=False)
argsort(x, /, *, axis=-1, descending=False, stable=True)
asarray(obj, /, *, dtype=None, device=None, copy=None)
astype(x, dtype, /, *, copy=True, device=None)
broadcast_arrays(*arrays)
broadcast_shapes(*shapes)
broadcast_to(x, /, shape)
can_cast(from_, to, /)
clip(x, /, min=None, max=None)
concat(arrays, /, *, axis=0)
count_nonzero(x, /, *, axis=None, keepdims=False)
cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False)
cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False)
diff(x, /, *, axis=-1, n=1, prepend=None, append=None)
empty(shape, *, dtype=None, device=None)
empty_like(x, /, *, dtype=None, device=None)
expand_dims(x, /, axis)
eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)
finfo(type, /)
flip(x, /, *, axis=None)
from_dlpack(x, /, *, device=None, copy=None)
full(shape, fill_value, *, dtype=None, device=None)
full_like(x, /, fill_value, *, dtype=None, device=None)
iinfo(type, /)
isdtype(dtype, kind)
isin(x1, x2, /, *, invert=False)
linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)
max(x, /, *, axis=None, keepdims=False)
mean(x, /, *, axis=None, keepdims=False)
meshgrid(*arrays, indexing='xy')
min(x, /, *, axis=None, keepdims=False)
moveaxis(x, source, destination, /)
ones(shape, *, dtype=None, device=None)
ones_like(x, /, *, dtype=None, device=None)
permute_dims(x, /, axes)
prod(x, /, *, axis=None, dtype=None, keepdims=False)
repeat(x, repeats, /, *, axis=None)
reshape(x, /, shape, *, copy=None)
result_type(*arrays_and_dtypes)
roll(x, /, shift, *, axis=None)
searchsorted(x1, x2, /, *, side='left', sorter=None)
sort(x, /, *, axis=-1, descending=False, stable=True)
squeeze(x, /, axis)
stack(arrays, /, *, axis=0)
std(x, /, *, axis=None, correction=0.0, keepdims=False)
sum(x, /, *, axis=None, dtype=None, keepdims=False)
take(x, indices, /, *, axis=None)
take_along_axis(x, indices, /, *, axis=-1)
tensordot(x1, x2, /, *, axes=2)
tile(x, repetitions, /)
tril(x, /, *, k=0)
triu(x, /, *, k=0)
unstack(x, /, *, axis=0)
var(x, /, *, axis=None, correction=0.0, keepdims=False)
vecdot(x1, x2, /, *, axis=-1)
where(condition, x1, x2, /)
zeros(shape, *, dtype=None, device=None)
zeros_like(x, /, *, dtype=None, device=None)
"""
_LINALG = """
cholesky(x, /, *, upper=False)
cross(x1, x2, /, *, axis=-1)
det(x, /)
diagonal(x, /, *, offset=0)
eig(x, /)
eigh(x, /)
eigvals(x, /)
eigvalsh(x, /)
inv(x, /)
matmul(x1, x2, /)
matrix_norm(x, /, *, keepdims=False, ord='fro')
matrix_power(x, n, /)
matrix_rank(x, /, *, rtol=None)
matrix_transpose(x, /)
outer(x1, x2, /)
pinv(x, /, *, rtol=None)
qr(x, /, *, mode='reduced')
slogdet(x, /)
solve(x1, x2, /)
svd(x, /, *, full_matrices=True)
svdvals(x, /)
tensordot(x1, x2, /, *, axes=2)
trace(x, /, *, offset=0, dtype=None)
vecdot(x1, x2, /, *, axis=-1)
vector_norm(x, /, *, axis=None, keepdims=False, ord=2)
"""
_FFT = """
fft(x, /, *, n=None, axis=-1, norm='backward')
fftfreq(n, /, *, d=1.0, dtype=None, device=None)
fftn(x, /, *, s=None, axes=None, norm='backward')
fftshift(x, /, *, axes=None)
hfft(x, /, *, n=None, axis=-1, norm='backward')
ifft(x, /, *, n=None, axis=-1, norm='backward')
ifftn(x, /, *, s=None, axes=None, norm='backward')
ifftshift(x, /, *, axes=None)
ihfft(x, /, *, n=None, axis=-1, norm='backward')
irfft(x, /, *, n=None, axis=-1, norm='backward')
irfftn(x, /, *, s=None, axes=None, norm='backward')
rfft(x, /, *, n=None, axis=-1, norm='backward')
rfftfreq(n, /, *, d=1.0, dtype=None, device=None)
rfftn(x, /, *, s=None, axes=None, norm='backward')
"""


def _by_name(lines: str) -> dict[str, str]:
    pairs = (line.partition("(") for line in lines.split("\n") if line)
    return {name: f"({arguments}" for name, _, arguments in pairs}


PARTS: dict[str, dict[str, str]] = {
    "": dict(
        sorted(
            {
                **dict.fromkeys(_OF_ONE.split(), "(x, /)"),
                **dict.fromkeys(_OF_TWO.split(), "(x1, x2, /)"),
                **_by_name(_OTHERS),
            }.items()
        )
    ),
    "linalg": _by_name(_LINALG),
    "fft": _by_name(_FFT),
}


def signature_of(text: str) -> inspect.Signature:
    """What one of the texts in `PARTS` says, as Python has signatures."""
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


# Those that make an array of no array: they take the current engine.
CREATION = {
    "": {"arange", "asarray", "empty", "eye", "from_dlpack", "full", "linspace", "ones", "zeros"},
    "linalg": set[str](),
    "fft": {"fftfreq", "rfftfreq"},
}
# Those that may be asked about a dtype alone.
ABOUT_DTYPES = {"can_cast", "finfo", "iinfo", "isdtype", "result_type"}
