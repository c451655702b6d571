"""Which checkpoints may still be needed: by a trial that may go on from it, a clone, or as the best trial's last."""

from typing import final


@final
class CheckpointHolders:
    """How many hold each checkpoint; who lets go last says that it can be deleted. Knows names only.

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
        """Whether that was the last one."""
        count = self._counts[name] - 1
        if count:
            self._counts[name] = count
        else:
            del self._counts[name]
        return not count

    @property
    def names(self) -> frozenset[str]:
        """All that are held."""
        return frozenset(self._counts)
