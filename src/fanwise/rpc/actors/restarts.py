"""When an actor that may be made again is made again, and where. A quiet file.

    lives --its worker has gone--> down --a worker of that name is there--> being made --> lives
                              +--> over, when it was made again as often as it may be

Its place is a name: a worker that comes back under it is another life of that worker, and has nothing of the actor.
"""

from dataclasses import dataclass
from typing import Literal

from ..references.orders import GlobalId
from ..worker_info import WorkerKey

State = Literal["lives", "down", "over"]


@dataclass(slots=True)
class Restarts:
    """One actor. Says `make it there`, by returning True.

    Attributes:
        place: the name of its worker.
        left: how often it may be made again.
        id: by which it is known now.
        at: which life of the worker has it, or is making it.
    """

    place: str
    left: int
    id: GlobalId
    at: WorkerKey
    state: State = "lives"

    def gone(self, worker: WorkerKey) -> bool:
        """A worker died or left. True: it was the actor's, and what waits for the actor has to know."""
        if worker != self.at or self.state != "lives":
            return False
        self.state = "down" if self.left else "over"
        return True

    def there(self, name: str, worker: WorkerKey) -> bool:
        """A worker is in the group. True: make the actor there, as `made` will tell."""
        if self.state != "down" or name != self.place:
            return False
        self.left -= 1
        self.at, self.state = worker, "lives"
        return True

    def made(self, id: GlobalId, at: WorkerKey) -> None:
        """It is being made, under this number, by this life of the worker."""
        self.id, self.at = id, at

    def cannot_be_made(self) -> None:
        """It is not made again."""
        self.state = "over"

    def knows(self, id: GlobalId) -> bool:
        """Whether who knows the actor by `id` knows it as it is now."""
        return self.state == "lives" and id == self.id
