"""What a loss leaves behind outside of modules: counters in closures and globals, lists, objects of the program's own.

    calls += 1; return losses / calls                          nonlocal, or global
    baseline = 0.9 * baseline + 0.1 * losses.mean().detach()
    queue.append(codes); self.calls += 1

One process has what its own shards have left, and one device what all have. That something was left says little: most
of it is for people to read. So what comes of it decides: after the first step one shard is executed with what is there
now, and with what was there before the step (`Verifier.check_repeats`). The step is refused if the results differ.
"""

from collections.abc import Mapping, Sequence
from types import CellType
from typing import Any

from torch import Tensor, nn

from ..inspecting.contents import copied, fill, holds
from ..inspecting.reached import Root, is_of_program, named_by, reached

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MOST_BYTES = 1 << 16


class Traces:
    """What a loss function and a model name, or the function of a loop, as it was when this was made."""

    def __init__(self, roots: Sequence[Root]) -> None:
        self._names = [(each.home, each.name, each.value) for root in roots for each in named_by(root)]
        self._contents: dict[int, tuple[Any, Any]] = {}  # Any: a container or tensor, and a copy
        for root in roots:
            for each in reached(root):
                self._keep(each.value)

    def _keep(self, value: Any) -> None:  # Any: of the user's making
        if not isinstance(value, nn.Module | type) and is_of_program(type(value)):
            value = getattr(value, "__dict__", None)
        if isinstance(value, Tensor) and value.numel() * value.element_size() > _MOST_BYTES:
            return
        if (content := copied(value)) is not None:
            self._contents[id(value)] = value, content

    def are_left(self) -> bool:
        """Whether anything is not as it was."""
        is_other = any(not _same(before, _now(home, name)) for home, name, before in self._names)
        return is_other or any(not holds(value, content) for value, content in self._contents.values())

    def put_back(self) -> None:
        """All is as it was, but for local variables of a function that is still at work: nobody else can set these."""
        for home, name, before in self._names:
            if _now(home, name) is not before:
                _set(home, name, before)
        for value, content in self._contents.values():
            if not holds(value, content):
                fill(value, content)


def _now(home: Any, name: str) -> Any:  # Any: a cell, or globals
    if isinstance(home, CellType):
        return home.cell_contents
    globals_: Mapping[str, Any] = home
    return globals_.get(name)


def _set(home: Any, name: str, value: Any) -> None:  # Any: as above
    if isinstance(home, CellType):
        home.cell_contents = value
    else:
        home[name] = value


def _same(one: Any, other: Any) -> bool:  # Any: of any kind
    return one is other or (isinstance(one, _PLAIN) and type(one) is type(other) and one == other)
