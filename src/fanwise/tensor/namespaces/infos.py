"""What a namespace says of itself: its dtypes, devices and defaults, and the limits of number types. A quiet file.

`Info` is what `__array_namespace_info__()` returns; each engine's file makes one from a few facts. `FloatInfo` and
`IntInfo` are what `finfo` and `iinfo` return, with Python numbers and the engine's own dtype on every engine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


def float_info(found: Any, dtype: Any) -> FloatInfo:  # Any: the engine's finfo, and its dtype
    """The same facts as Python numbers."""
    smallest = float(found.smallest_normal)
    return FloatInfo(int(found.bits), float(found.eps), float(found.max), float(found.min), smallest, dtype)


def int_info(found: Any, dtype: Any) -> IntInfo:  # Any: the engine's iinfo, and its dtype
    """The same facts as Python numbers."""
    return IntInfo(int(found.bits), int(found.max), int(found.min), dtype)


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
