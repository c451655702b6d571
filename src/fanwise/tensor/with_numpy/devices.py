"""The one device of NumPy."""

from typing import Any


def names() -> list[str]:
    return ["cpu"]


def device_of(x: object) -> str:
    return "cpu"


def move(x: Any, device: str) -> Any:
    return x
