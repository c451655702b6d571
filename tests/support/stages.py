"""Actors on a stage: programs that block, one of them going on at a time, and who goes on is drawn from one seed.

    stage = Stage(seed)
    stage.enter("a", lambda: ...)          its code calls stage.step() between any two things that others may see
    stage.kill("a")                        it goes no further than where it is
    stage.play(until=lambda: ...)          raises AssertionError when nobody gets on any more

Each actor has a thread, and all but one of these wait, so the same seed gives the same play. An actor that waits for
another calls `stage.wait()` in a loop, and whoever changes something calls `stage.changed()`. Knows nothing of what
the actors do.
"""

import random
import threading
from collections.abc import Callable

# So many waits in a row, without a change, that each actor has looked at everything many times.
_MOST_WAITS = 400


class Killed(BaseException):
    """Raised in an actor that goes no further."""


class _Actor:
    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.body = body
        self.turn = threading.Semaphore(0)
        self.is_over = False
        self.is_killed = False
        self.error: BaseException | None = None
        self.thread: threading.Thread


class Stage:
    """See the module.

    Args:
        seed: of who goes on.
        calm: how often the same actor goes on at a step, 0 to 1.
    """

    def __init__(self, seed: int, *, calm: float = 0.5) -> None:
        self.chance = random.Random(f"{seed}/stage")
        self.steps = 0
        self.before_step: Callable[[], None] = lambda: None
        self._calm = calm
        self._actors: dict[str, _Actor] = {}
        self._now: _Actor | None = None
        self._waits = 0
        self._is_stuck = False
        self._is_played = False
        self._until: Callable[[], bool] = lambda: True
        self._curtain = threading.Semaphore(0)

    def enter(self, name: str, body: Callable[[], None]) -> None:
        """One more actor. A name can be used again when who had it is over."""
        assert name not in self._actors or self._actors[name].is_over, f"{name} is on the stage"
        actor = _Actor(name, body)
        actor.thread = threading.Thread(target=self._live, args=(actor,), name=name, daemon=True)
        self._actors[name] = actor
        actor.thread.start()
        self.changed()

    def kill(self, name: str) -> None:
        """Stop this actor where it is, for ever."""
        self._actors[name].is_killed = True
        self.changed()

    def is_over(self, name: str) -> bool:
        """Whether this actor does nothing more."""
        return self._actors[name].is_over or self._actors[name].is_killed

    def error_of(self, name: str) -> BaseException | None:
        """What the actor raised."""
        return self._actors[name].error

    def changed(self) -> None:
        """Something is there now that somebody may wait for."""
        self._waits = 0

    def step(self) -> None:
        """Another actor may go on here."""
        self.steps += 1
        self.before_step()
        self._pass_on(stays=self.chance.random() < self._calm)

    def wait(self) -> None:
        """Another actor goes on here, as this one waits for something."""
        self.steps += 1
        self._waits += 1
        self.before_step()
        self._pass_on(stays=False)

    def play(self, until: Callable[[], bool]) -> None:
        """Let the actors go on until this holds, or all are over; then all are ended.

        Raises:
            AssertionError: everybody waits and nothing changes.
        """
        self._until = until
        self._give_turn()
        self._curtain.acquire()
        self._is_played = True
        waiting = [actor.name for actor in self._actors.values() if not actor.is_over and not actor.is_killed]
        for actor in self._actors.values():
            actor.turn.release()
            actor.thread.join()
        assert not self._is_stuck, f"nobody gets on after {self.steps} steps; waiting: {waiting}"

    def _pass_on(self, *, stays: bool) -> None:
        me = self._now
        assert me is not None and threading.current_thread() is me.thread, "called by the actor whose turn it is"
        self._look_at_curtain(me)
        if stays and not self._is_stuck:
            return
        self._give_turn()
        me.turn.acquire()
        self._look_at_curtain(me)

    def _look_at_curtain(self, me: _Actor) -> None:
        if me.is_killed or self._is_played:
            raise Killed

    def _give_turn(self) -> None:
        self._is_stuck = self._is_stuck or self._waits > _MOST_WAITS * len(self._actors)
        able = [actor for actor in self._actors.values() if not actor.is_over and not actor.is_killed]
        if self._is_stuck or not able or self._until():
            self._curtain.release()
        else:
            self._now = self.chance.choice(able)
            self._now.turn.release()

    def _live(self, actor: _Actor) -> None:
        actor.turn.acquire()
        try:
            self._look_at_curtain(actor)
            actor.body()
        except Killed:
            pass
        except BaseException as error:
            actor.error = error
        actor.is_over = True
        if not self._is_played:
            self.changed()
            self._give_turn()
