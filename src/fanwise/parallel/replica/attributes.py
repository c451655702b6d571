"""The plain attributes of modules during a step: every shard begins with the same ones, as with buffers.

    self.calls += 1         a number, text, flag, or tuple of those: after the step it is what the first shard made it
    self.hidden = h         anything else: after the step it is what it was before, and a warning says so once
    self.features = x       a tensor of the graph is what one forward pass leaves to its loss: so too, without a warning

Which attributes a forward pass changes is found by comparing all of them, in the first steps and then in every step
whose number is a power of two; the others look after those that were found. So a counter counts steps, on any number of
devices, and no shard sees what another one has left.
"""

import logging
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..inspecting.contents import copied, fill, holds

_log = logging.getLogger(__name__)

Key = tuple[int, str]  # of an attribute: which module, and its name
_REGISTERS = frozenset(("_parameters", "_buffers", "_modules", "forward"))  # forward: see batch_norm
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size, torch.device)


class _Absent:
    """There is no such attribute."""


_ABSENT = _Absent()


class _Kept(NamedTuple):
    """An attribute as it was: the object, and what it held."""

    value: Any  # Any: of the user's making
    content: Any  # Any: a copy of a container or tensor, else None


class Attributes:
    """Of these modules, by their names in messages."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        homes: dict[int, tuple[str, nn.Module]] = {}
        for name, module in modules.items():
            for path, each in module.named_modules():
                homes.setdefault(id(each), (".".join(filter(None, (name, path))), each))
        self._homes = list(homes.values())
        self._found: dict[Key, None] = {}
        self._kept: dict[Key, _Kept] = {}
        self._looks = False
        self._said: set[Key] = set()

    def keep(self, *, looks: bool) -> None:
        """A step begins: remember what is there. `looks`: compare everything, not only what was found to change."""
        self._looks = looks
        keys = self._all() if looks else iter(self._found)
        self._kept = {key: _kept(self._now(key)) for key in keys}

    def take(self) -> dict[Key, Any]:  # Any: plain values
        """What a shard has changed, as far as it can be told to others; and put back what was before."""
        self._look()
        taken = {}
        for key in self._found:
            if self._has_changed(key):
                value = self._now(key)
                if _is_plain(value):
                    taken[key] = value
                else:
                    self._say_once(key, value)
                self._put_back(key)
        return taken

    def put_back(self) -> None:
        """All that have changed are as at the beginning of the step."""
        self._look()
        for key in self._found:
            if self._has_changed(key):
                self._put_back(key)

    def _look(self) -> None:
        if self._looks:
            for key in {**self._kept, **dict.fromkeys(self._all())}:
                if key not in self._found and self._has_changed(key):
                    self._found[key] = None

    def settle(self, values: Mapping[Key, Any]) -> None:  # Any: plain values
        """The step is done: what the first shards have made of them."""
        for (place, name), value in values.items():
            vars(self._homes[place][1])[name] = value

    def marks(self) -> dict[str, Any]:  # Any: plain values
        """All plain ones, by name."""
        return {self._called(key): value for key in self._all() if _is_plain(value := self._now(key))}

    def _all(self) -> Iterator[Key]:
        for place, (_, module) in enumerate(self._homes):
            yield from ((place, name) for name in vars(module) if name not in _REGISTERS)

    def _now(self, key: Key) -> Any:  # Any: of the user's making
        return vars(self._homes[key[0]][1]).get(key[1], _ABSENT)

    def _called(self, key: Key) -> str:
        return f"{self._homes[key[0]][0]}.{key[1]}"

    def _has_changed(self, key: Key) -> bool:
        before, now = self._kept.get(key, _Kept(_ABSENT, None)), self._now(key)
        if now is not before.value:
            plain = _is_plain(now) and type(now) is type(before.value)
            return not (plain and now == before.value)
        return before.content is not None and not holds(now, before.content)

    def _put_back(self, key: Key) -> None:
        attributes: MutableMapping[str, Any] = vars(self._homes[key[0]][1])
        before = self._kept.get(key, _Kept(_ABSENT, None))
        if before.value is _ABSENT:
            attributes.pop(key[1], None)
            return
        attributes[key[1]] = before.value
        if before.content is not None and not holds(before.value, before.content):
            fill(before.value, before.content)

    def _say_once(self, key: Key, value: Any) -> None:  # Any: of the user's making
        is_of_graph = isinstance(value, Tensor) and value.grad_fn is not None
        if is_of_graph or value is _ABSENT or key in self._said:
            return
        self._said.add(key)
        _log.warning(
            "a forward pass of the step changes %s, a %s. Every shard begins with what it was before the step, and so "
            "does the program after it: shards are executed on any device, in any order.\n"
            "  wrong:  self.%s = hidden.detach()              # in forward, for the next batch\n"
            "  right:  give it with the batch, or register_buffer for what is the same after every shard",
            self._called(key),
            type(value).__name__,
            key[1],
        )


def _is_plain(value: Any) -> bool:  # Any: of the user's making
    if isinstance(value, tuple):
        return len(value) <= 64 and all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _kept(value: Any) -> _Kept:  # Any: of the user's making
    return _Kept(value, copied(value))
