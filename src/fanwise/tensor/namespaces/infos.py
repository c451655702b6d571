"""What a namespace says of itself: its dtypes, devices and defaults, and the limits of number types.

`Info` is what `__array_namespace_info__()` returns; each engine's file makes one from a few facts. `FloatInfo` and
`IntInfo` are what `finfo` and `iinfo` return, with Python numbers and the engine's own dtype on every engine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..dtype_names import FLOAT, INTEGER, dtype_name, dtype_rank, limits
from .standard import DTYPES

KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
KINDS["integral"] = KINDS["signed integer"] + KINDS["unsigned integer"]
KINDS["numeric"] = KINDS["integral"] + KINDS["real floating"] + KINDS["complex floating"]


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """The limits of a floating type; of a complex type those of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Any  # the engine's own dtype


@dataclass(frozen=True, slots=True)
class IntInfo:
    """The limits of an integer type."""

    bits: int
    max: int
    min: int
    dtype: Any  # the engine's own dtype


def limits_of(dtypes: Callable[[str], Any]) -> tuple[Callable[[Any], FloatInfo], Callable[[Any], IntInfo]]:
    """`finfo` and `iinfo` of an engine, which take an array or a dtype. `dtypes` gives its dtype of a name."""

    def finfo(type: Any, /) -> FloatInfo:
        name = dtype_name(getattr(type, "dtype", type))
        name = {"complex64": "float32", "complex128": "float64"}.get(name, name)
        if dtype_rank(name) != FLOAT:
            raise TypeError(f"finfo is about floating-point types, got {name}; for integers there is iinfo")
        import ml_dtypes

        found = ml_dtypes.finfo(name)  # type: ignore[no-untyped-call]
        smallest = float(found.smallest_normal)
        limits = float(found.eps), float(found.max), float(found.min)
        return FloatInfo(int(found.bits), *limits, smallest, dtypes(name))

    def iinfo(type: Any, /) -> IntInfo:
        name = dtype_name(getattr(type, "dtype", type))
        if dtype_rank(name) != INTEGER:
            raise TypeError(f"iinfo is about integer types, got {name}; for floats there is finfo")
        least, greatest = limits(name)
        return IntInfo((greatest - least).bit_length(), greatest, least, dtypes(name))

    return finfo, iinfo


@dataclass(frozen=True, slots=True)
class Info:
    """What an engine can do, as the standard asks: `namespace("jax").__array_namespace_info__()`.

    Args:
        all_dtypes: the engine's dtypes by their names in the standard; called each time, as switches change them.
        defaults: the default dtypes by kind: "real floating", "complex floating", "integral", "indexing".
        all_devices: the devices there are.
        max_dimensions: how many axes an array can have; None if there is no limit.
    """

    all_dtypes: Callable[[], dict[str, Any]]  # Any, here and below: the engine's own dtypes and devices
    defaults: Callable[[], dict[str, Any]]
    all_devices: Callable[[], tuple[Any, ...]]
    max_dimensions: int | None = 64

    def capabilities(self) -> dict[str, Any]:
        """What this engine can do beside computing."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": self.max_dimensions}

    def default_device(self) -> Any:
        """Where new arrays are."""
        return self.all_devices()[0]

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The dtypes of arrays made of Python numbers, and of indices; the same on every device."""
        return self.defaults()

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, Any]:
        """The dtypes of that kind, or of all those kinds, by name.

        Raises:
            ValueError: there is no such kind.
        """
        wanted: set[str] = set()
        for each in kind if isinstance(kind, tuple) else (kind,):
            if each is not None and each not in KINDS:
                raise ValueError(f"kind must be one of {', '.join(KINDS)} or a tuple of them, got {each!r}")
            wanted |= set(DTYPES if each is None else KINDS[each])
        return {name: dtype for name, dtype in self.all_dtypes().items() if name in wanted}

    def devices(self) -> list[Any]:
        """The devices there are, the default one first."""
        return list(self.all_devices())
