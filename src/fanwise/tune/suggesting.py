"""Where the searcher runs: in a thread of its own, or, if it answers at once, where reports are answered.

    Tuning --observe, on_rollback, on_end--> AtOnce or InThread --> searcher
    Suggest order ------------ ask ----->                     --> Suggested, as a fact

Whoever asks has told all observations before, and the thread takes both from one queue: so a suggestion depends on the
facts that had come in when it was ordered, and on nothing else.
"""

import atexit
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, final

from .decisions.driving import asked, failed_suggestion
from .decisions.facts import Suggested
from .decisions.orders import Suggest
from .searchers.base import Observation, Searcher

_MOST_WAITED_S = 10.0


class Suggester(Protocol):
    """What the tuner asks of it: a listener of `Tuning`, and `ask`."""

    def observe(self, observation: Observation) -> None: ...
    def on_rollback(self, trial_id: int, to_iter: int) -> None: ...
    def on_end(self, trial_id: int, status: str) -> None: ...

    def ask(self, order: Suggest, *, now_s: float, seen: int) -> Suggested | None:
        """The answer; or None, and it comes later by itself."""

    @property
    def failure(self) -> BaseException | None:
        """What the searcher raised, when it was asked or told."""

    def close(self) -> None:
        """No answer comes any more. Blocks for nothing: a searcher that thinks ends when it has thought."""

    def settle(self) -> None:
        """After `close`: blocks until it has taken in what it was told, unless it thinks of what nobody waits for."""


def suggester_for(searcher: Searcher, tell: Callable[[Suggested], None], now_s: Callable[[], float]) -> Suggester:
    """`tell`: called with late answers, on another thread. `now_s`: the time of an answer, on any thread."""
    return AtOnce(searcher) if searcher.runs_inline else InThread(searcher, tell, now_s)


@final
class AtOnce:
    """A searcher that answers at once."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self.failure: BaseException | None = None
        self.observe = searcher.observe
        self.on_rollback = searcher.on_rollback
        self.on_end = searcher.on_end

    def ask(self, order: Suggest, *, now_s: float, seen: int) -> Suggested:
        try:
            return Suggested(now_s, order.number, asked(self._searcher, order), seen)
        except Exception as error:  # user code: whatever it raises ends the search, in order
            self.failure = error
            return failed_suggestion(self._searcher, order, now_s, error, seen=seen)

    def close(self) -> None:
        """Nothing runs."""

    def settle(self) -> None:
        """It has."""


@final
class InThread:
    """A searcher that thinks. Its thread is a daemon: a fit that never ends keeps no program from ending.

    But a program that ends waits some seconds for what it is thinking: a daemon that comes back from C++ while Python
    is being taken down ends the process by SIGABRT ("terminate called without an active exception").
    """

    def __init__(self, searcher: Searcher, tell: Callable[[Suggested], None], now_s: Callable[[], float]) -> None:
        self._searcher = searcher
        self._tell = tell
        self._now_s = now_s
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.failure: BaseException | None = None
        self._closed = False
        self._is_asked = False
        self._thread = threading.Thread(target=self._run, name="fanwise-searcher", daemon=True)
        atexit.register(self._end)
        self._thread.start()

    def observe(self, observation: Observation) -> None:
        self._todo.put(lambda: self._searcher.observe(observation))

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self._todo.put(lambda: self._searcher.on_rollback(trial_id, to_iter))

    def on_end(self, trial_id: int, status: str) -> None:
        self._todo.put(lambda: self._searcher.on_end(trial_id, status))

    def ask(self, order: Suggest, *, now_s: float, seen: int) -> None:
        self._todo.put(lambda: self._answer(order, seen))

    def close(self) -> None:
        self._closed = True
        self._todo.put(None)

    def settle(self) -> None:
        if not self._is_asked:
            self._thread.join(_MOST_WAITED_S)

    def _answer(self, order: Suggest, seen: int) -> None:
        config = None
        self._is_asked = True
        if self.failure is None and not self._closed:
            try:
                config = asked(self._searcher, order)
            except BaseException as error:  # user code: whatever it raises, sys.exit too, ends the search, in order
                self.failure = None if self._closed else error
        self._is_asked = False
        if self._closed:
            return
        if self.failure is None:
            self._tell(Suggested(self._now_s(), order.number, config, seen))
        else:
            self._tell(failed_suggestion(self._searcher, order, self._now_s(), self.failure, seen=seen))

    def _end(self) -> None:
        self.close()
        self._thread.join(_MOST_WAITED_S)

    def _run(self) -> None:
        try:
            self._think()
        finally:
            atexit.unregister(self._end)

    def _think(self) -> None:
        while (todo := self._todo.get()) is not None:
            try:
                todo()
            except BaseException as error:  # user code: it is told with the next suggestion, which ends the search
                self.failure = self.failure or error
