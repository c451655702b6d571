"""Whether a loop over the shards of a batch is under way in a run: in its body nothing is exchanged.

Each process executes its own shards, so a body runs another number of times in each: an exchange there would have the
processes wait for each other for ever, or take one thing for another.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class OpenLoop:
    """Of one run. A quiet object: it counts to one."""

    def __init__(self) -> None:
        self._is_open = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A loop is under way in this block."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def check(self, what: str) -> None:
        """Raises ValueError in the body of a loop. `what`: is called, by its name in a program."""
        if self._is_open:
            raise ValueError(
                f"{what} was called in the body of a loop over step.shards(batch). A body runs once for each shard "
                f"that this process executes, so the processes would not do the same.\n"
                f"  wrong:  for x, y in step.shards(batch): step.backward(...); step.update()\n"
                f"  right:  for x, y in step.shards(batch): step.backward(...)\n"
                f"          step.update()                                       # after the loop, as everything else"
            )
