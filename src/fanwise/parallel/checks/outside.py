"""What a training function reaches that was made outside of it: it is shared on one device, and copied on several.

    model = Net()                      one device: the run trains this very object
    def train(run): ... model ...      several: each process trains a copy, and this one stays as it was

So a model from outside is refused, on one device too, and what else has changed during the run is said when it is over.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import nn

from ..inspecting.reached import Reached, reached

_log = logging.getLogger(__name__)

_PLAIN = (bool, int, float, str, bytes, type(None))
_MOST_SAID = 3


class _Held(NamedTuple):
    """Something that may change: `before` is what it held, or what the name stood for."""

    found: Reached
    before: Any  # Any: its members, or its value


class Outside:
    """Of one training function, as it was when the run began."""

    def __init__(self, train: Callable[..., Any]) -> None:  # Any: of the user's making
        self._params: dict[int, tuple[str, nn.Parameter]] = {}
        self._held: list[_Held] = []
        for found in reached(train):
            if isinstance(found.value, nn.Module):
                for param in found.value.parameters():
                    self._params.setdefault(id(param), (found.name, param))
            elif isinstance(found.value, list | dict | set) and found.home is not None:
                self._held.append(_Held(found, _members(found.value)))

    def check_model(self, model: nn.Module) -> None:
        """Raises ValueError if it, or a part of it, was made before the run began."""
        for param in model.parameters():
            if id(param) in self._params:
                name = self._params[id(param)][0] or "model"
                raise ValueError(
                    f"the model {name!r} was made outside of the training function. On one device the run would change "
                    f"that very object; on several each process would train a copy, and {name!r} would stay as it was."
                    f"\n  wrong:  {name} = Net(); fanwise.run(train)              # train uses {name}\n"
                    f"  right:  def train(run): model = Net(); ...; return model    # model = fanwise.run(train)\n"
                    f"  right:  def train(run): model = copy.deepcopy({name}); ...; return model"
                )

    def say_changes(self) -> None:
        """Warn of what the function has changed outside of itself."""
        names = [held.found.name for held in self._held if not _is_same(held.before, _members(held.found.value))]
        if names:
            said = ", ".join(map(repr, names[:_MOST_SAID])) + (" and others" if len(names) > _MOST_SAID else "")
            _log.warning(
                "the training function changed %s, made outside of it. With several devices each process changes a "
                "copy, and the program sees nothing of it: return what you need from the training function.",
                said,
            )


def _members(value: Any) -> list[Any]:  # Any: a list, dict or set
    return [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)


def _is_same(before: Sequence[Any], now: Sequence[Any]) -> bool:  # Any: of any kind
    if len(before) != len(now):
        return False
    return all(
        one is other or (isinstance(one, _PLAIN) and type(one) is type(other) and one == other)
        for one, other in zip(before, now, strict=True)
    )
