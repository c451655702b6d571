"""`WorkerInfo`: the name and rank of a worker."""

import re

_NAME_CHARS_MAX = 128
_NAME = re.compile(r"[A-Za-z0-9_:\-]+")


def name_error(name: str) -> str | None:
    """Return why a worker name is invalid, in torch's words, or None."""
    if not name:
        return "Worker name must be non-empty"
    if len(name) >= _NAME_CHARS_MAX:
        return f"Worker name must be shorter than {_NAME_CHARS_MAX} characters, got {len(name)}"
    if _NAME.fullmatch(name) is None:
        return f"Worker name must match ^[A-Za-z0-9_-:]*$, but got {name!r}"
    return None


class WorkerInfo:
    """A worker of the group: `name` and `id` (its rank). Hashable, and can be sent to any worker.

    Args:
        name: letters, digits, `_`, `:` and `-`, shorter than 128 characters. RuntimeError otherwise.
        id: the rank.
    """

    __slots__ = ("id", "name")

    def __init__(self, name: str, id: int) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a worker's name must be a str, got {name!r} of type {type(name).__name__}")
        problem = name_error(name)
        if problem is not None:
            raise RuntimeError(f"{problem}.")
        self.name = name
        self.id = int(id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkerInfo) and (self.id, self.name) == (other.id, other.name)

    def __hash__(self) -> int:
        return hash((self.name, self.id))

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, name={self.name})"

    def __reduce__(self) -> "tuple[type[WorkerInfo], tuple[str, int]]":
        return WorkerInfo, (self.name, self.id)
