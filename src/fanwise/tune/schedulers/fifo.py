"""First in, first out: every trial runs to its end."""

from typing import ClassVar, final

from ..searchers.searcher import Observation, SuggestContext
from .scheduler import CONTINUE, Decision, New, NextTrial, Scheduler


@final
class FIFO(Scheduler):
    """Runs every trial to its end; a searcher chooses the configurations. Arguments and errors: see `Scheduler`.

    >>> from fanwise.tune import Space
    >>> scheduler = FIFO("sobol", metric="loss", points_to_evaluate=[{"depth": 3}])
    >>> scheduler.next(SuggestContext(0, 0, Space({"depth": 3})))
    New(config=None)
    """

    multiple_objectives: ClassVar[bool] = True

    def next(self, context: SuggestContext) -> NextTrial:
        return New()

    def on_report(self, observation: Observation) -> Decision:
        return CONTINUE
