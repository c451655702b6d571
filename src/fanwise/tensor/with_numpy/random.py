"""Random arrays of numpy: as they are made."""

from ..random.exact import Array


def default_integer() -> str:
    return "int64"


def check_dtype(name: str) -> None:
    """numpy has them all, bfloat16 by ml_dtypes."""


def adopt(made: Array, device: str | None) -> Array:
    return made
