"""First in, first out: every trial runs to its end, and a searcher chooses the configurations."""

from collections.abc import Mapping, Sequence
from typing import final

from ..constraints import checked_constraints
from ..searchers.base import Ask, Mode, Objective, Observation, Searcher
from ..spaces import Space
from .protocol import CONTINUE, Decision, New, NextTrial, Status
from .settings import (
    checked_name,
    checked_objectives,
    checked_searcher,
    checked_seed,
    checks_options,
    described_objectives,
)


@final
class FIFOScheduler:
    """Runs every trial to its end; a searcher chooses the configurations.

    Args:
        searcher: chooses; None: at random.
        metric: name of the reported value to optimise, or several.
        mode: "min" or "max", for all or for each.
        constraints: what reports must meet, such as ["latency_ms <= 20"]; one that does not ranks behind all that do.
        resource_attr: name of the reported value that says how far a trial is; None: the number of its reports.
        points_to_evaluate: configurations to try first, in this order; what one leaves out is drawn at random.
        random_seed: None takes the tuner's seed.

    Raises:
        TypeError: an unknown option (names the nearest), or an argument of the wrong type.
        ValueError: a mode other than "min" and "max", or an empty metric.

    >>> scheduler = FIFOScheduler(metric="loss", points_to_evaluate=[{"depth": 3}])
    >>> scheduler.next(Ask(0, 0, Space({"depth": 3})))
    New(config=None)
    """

    max_resource: float | None = None
    clones = False

    @checks_options
    def __init__(
        self,
        searcher: Searcher | str | None = None,
        *,
        metric: str | Sequence[str],
        mode: Mode | Sequence[Mode] = "min",
        constraints: Sequence[str] = (),
        resource_attr: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        random_seed: int | None = None,
    ) -> None:
        self.objectives: tuple[Objective, ...] = checked_objectives(metric, mode)
        self.searcher = checked_searcher(searcher, points_to_evaluate)
        self.constraints = checked_constraints(constraints)
        self.resource_attr = checked_name("resource_attr", resource_attr)
        self.random_seed = checked_seed(random_seed)

    def check(self, space: Space) -> None:
        self.searcher.check(space)

    def begin(self, space: Space, seed: int) -> None:
        self.searcher.begin(space, seed)

    def next(self, ask: Ask) -> NextTrial:
        return New()

    def on_report(self, observation: Observation) -> Decision:
        return CONTINUE

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        """Nothing is kept for a trial."""

    def on_end(self, trial_id: int, status: Status) -> None:
        """Nothing is kept for a trial."""

    def describe(self) -> dict[str, object]:
        return {
            "name": "FIFOScheduler",
            **described_objectives(self.objectives, self.constraints),
            "resource_attr": self.resource_attr,
            "searcher": self.searcher.describe(),
            "random_seed": self.random_seed,
        }
