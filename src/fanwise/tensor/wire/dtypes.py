"""The element types that have a code on the wire. A quiet file: names, numbers and sizes, no engine.

A code is for ever: a type may be added with a new number, none may change its number or be reused.
`in_numpy` tells whether numpy has the type itself; the others are raw words of the same size to it, or, where
`engines` has numpy, types of ml_dtypes.
"""

from dataclasses import dataclass

_ALL_ENGINES = frozenset(("numpy", "torch", "jax", "tensorflow"))
_TORCH = frozenset(("torch",))


@dataclass(frozen=True, slots=True)
class WireDtype:
    """One element type: its code, its name in the engines that have it, its size and what torch may do with it."""

    code: int
    name: str
    size_bytes: int
    differentiable: bool = False
    in_numpy: bool = True
    engines: frozenset[str] = _ALL_ENGINES


_ALL = (
    WireDtype(1, "bool", 1),
    WireDtype(2, "int8", 1),
    WireDtype(3, "int16", 2),
    WireDtype(4, "int32", 4),
    WireDtype(5, "int64", 8),
    WireDtype(6, "uint8", 1),
    WireDtype(7, "uint16", 2),
    WireDtype(8, "uint32", 4),
    WireDtype(9, "uint64", 8),
    WireDtype(16, "float16", 2, differentiable=True),
    WireDtype(17, "float32", 4, differentiable=True),
    WireDtype(18, "float64", 8, differentiable=True),
    WireDtype(24, "complex64", 8, differentiable=True),
    WireDtype(25, "complex128", 16, differentiable=True),
    WireDtype(32, "bfloat16", 2, differentiable=True, in_numpy=False),
    WireDtype(33, "complex32", 4, differentiable=True, in_numpy=False, engines=_TORCH),
    WireDtype(40, "float8_e4m3fn", 1, differentiable=True, in_numpy=False),
    WireDtype(41, "float8_e4m3fnuz", 1, differentiable=True, in_numpy=False),
    WireDtype(42, "float8_e5m2", 1, differentiable=True, in_numpy=False),
    WireDtype(43, "float8_e5m2fnuz", 1, differentiable=True, in_numpy=False),
    WireDtype(
        44, "float8_e8m0fnu", 1, differentiable=True, in_numpy=False, engines=frozenset(("numpy", "torch", "jax"))
    ),
    WireDtype(45, "float8_e4m3b11fnuz", 1, in_numpy=False, engines=_ALL_ENGINES - _TORCH),
    WireDtype(46, "float8_e4m3", 1, in_numpy=False, engines=frozenset(("numpy", "jax"))),
    WireDtype(47, "float8_e3m4", 1, in_numpy=False, engines=frozenset(("numpy", "jax"))),
    # Two 4-bit numbers a byte: size and shape count bytes, as torch's own do.
    WireDtype(48, "float4_e2m1fn_x2", 1, differentiable=True, in_numpy=False, engines=_TORCH),
)

BY_CODE = {dtype.code: dtype for dtype in _ALL}
