"""First in, first out: every trial runs to its end, and a searcher chooses the configurations."""

from typing import ClassVar, final

from ..searchers.base import Ask, Observation
from .base import CONTINUE, Decision, New, NextTrial, Scheduler


@final
class FIFO(Scheduler):
    """Runs every trial to its end; a searcher chooses the configurations. Arguments and errors: `Scheduler`.

    >>> from fanwise.tune import Space
    >>> scheduler = FIFO("sobol", metric="loss", points_to_evaluate=[{"depth": 3}])
    >>> scheduler.next(Ask(0, 0, Space({"depth": 3})))
    New(config=None)
    """

    multiple_objectives: ClassVar[bool] = True

    def next(self, ask: Ask) -> NextTrial:
        return New()

    def on_report(self, observation: Observation) -> Decision:
        return CONTINUE
