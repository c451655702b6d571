"""Reference counts of checkpoints: a trial that may resume, a clone, and the best trial each hold one."""

from typing import final


@final
class CheckpointHolders:
    """Counts the references to each checkpoint name. A checkpoint can be deleted when its last one is released.

    >>> holders = CheckpointHolders()
    >>> holders.hold("3/1"); holders.hold("3/1")
    >>> holders.let_go("3/1"), holders.let_go("3/1")
    (False, True)
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def hold(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1

    def let_go(self, name: str) -> bool:
        """Release one reference. Return True if it was the last one."""
        count = self._counts[name] - 1
        if count:
            self._counts[name] = count
        else:
            del self._counts[name]
        return not count

    @property
    def names(self) -> frozenset[str]:
        """The names with at least one reference."""
        return frozenset(self._counts)
