"""What `optimizer.state` is while the state lies in slices: nothing is in it until somebody looks.

    optimizer.state[p]["exp_avg"]     the whole state is fetched into it first; from then on it is a dict like any other
    optimizer.state[p] = {}, .clear() so too, and then it is changed

Whoever has looked may keep what was found, or write into it, so the optimizer that it belongs to is then updated as a
whole (`has_come`). The library itself never looks: it puts another dict in its place for a moment.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

_LOOKS = (
    "__getitem__ __contains__ __iter__ __reversed__ __len__ __eq__ __ne__ __repr__ __or__ get keys values items copy"
)
_CHANGES = "__setitem__ __delitem__ __ior__ pop popitem setdefault update clear"


class SlicedState(defaultdict[Any, dict[str, Any]]):  # Any: by parameter, and of any type
    """See the module.

    Args:
        fetch: the whole state, as the optimizer would have it.
    """

    def __init__(self, fetch: Callable[[], Mapping[Any, dict[str, Any]]]) -> None:  # Any: as above
        super().__init__(dict)
        self._fetch = fetch
        self.has_come = False

    def come(self) -> None:
        """The whole state is here from now on."""
        if not self.has_come:
            self.has_come = True
            dict.update(self, self._fetch())

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is a dict with the whole state."""
        return defaultdict, (dict,), None, None, iter(self.items())


def _looking(name: str) -> Callable[..., Any]:  # Any: as the method of dict
    method = getattr(defaultdict, name)

    def look(self: SlicedState, *args: Any, **kwargs: Any) -> Any:  # Any: as above
        self.come()
        return method(self, *args, **kwargs)

    return look


for _name in (*_LOOKS.split(), *_CHANGES.split()):
    setattr(SlicedState, _name, _looking(_name))
