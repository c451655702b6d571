"""What a searcher is: which configuration to try next, out of what was observed so far.

    suggest(Ask)          ->  a configuration, or None for "nothing now"
    observe(Observation)      at every report; a smaller loss is always better

A searcher of one's own is a class with these two methods; the others have a meaning to searchers that learn. It knows
the space, the losses and which configurations are still running; it knows nothing of workers, stopping, or whether the
user minimises or maximises. Chance comes in with each Ask: a generator made from the seed and the number of the
question, so that suggestion 17 does not depend on how many numbers the first 16 drew.
"""

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

from ..chance import Chance
from ..spaces import Space

Mode: TypeAlias = Literal["min", "max"]


@final
@dataclass(frozen=True, slots=True)
class Objective:
    """A reported value that is optimised: its name, and whether a small ("min") or a large ("max") one is good."""

    metric: str
    mode: Mode = "min"

    def loss(self, value: float) -> float:
        """The value as a loss: a smaller one is better. An infinite value, of either sign, is the largest loss."""
        loss = value if self.mode == "min" else -value
        return math.inf if loss == -math.inf else loss


@final
@dataclass(slots=True)
class Observation:
    """What a trial reported.

    Args:
        trial_id, config: which trial. An id below 0 is of an earlier search, which the searcher is told of before its
            first question (warm start); such a configuration may be suggested again.
        iter: number of the report within the trial, 1, 2, ...; it counts on when a trial is resumed.
        resource: how far the trial is: the scheduler's `resource_attr` in the report, rounded to 12 significant digits
            (0.1 + 0.2 is 0.3), else `iter`.
        losses: the objectives in their order, each as a loss; never NaN, which fails the trial. Infinite: something
            went wrong, whichever sign was reported; never -inf.
        values: the report as it came.
        violations: by how much each constraint is violated, in their order and in the unit of the metric: above 0 where
            it is, at most 0 where it is met. Empty without constraints.
        infeasibility: 0 for a report that meets all constraints; else how far it is from that: the violations, each
            divided by the size of its bound, in one number. A report ranks by this first, and then by its loss.
    """

    trial_id: int
    config: Mapping[str, object]
    iter: int
    resource: float
    losses: tuple[float, ...]
    values: Mapping[str, object]
    violations: tuple[float, ...] = ()
    infeasibility: float = 0.0

    @property
    def loss(self) -> float:
        """The first objective."""
        return self.losses[0]


@final
class Ask:
    """A question: to the scheduler, which trial runs next; to the searcher, with which configuration.

    Args:
        number: of the question, 0, 1, ...
        trial_id: the id that a new trial will get.
        space: draws, resamples and checks configurations.
        seed: of the search.
        purpose: a word that keeps the chance of this kind of question apart from others'.
        pending: the configurations of the trials that run now, by trial id. Read only.
        now_s: seconds since the search began.
        budget_s: seconds the searcher may take before a random configuration is used instead; None: as it likes.
        exhausted: the searcher has said that it has nothing, or is not asked any more; a further `New()` without
            configuration means `Wait()`.
        may_begin: False: as many trials have started as the search may start. What was paused may go on, but `New`
            and `Clone` mean `Wait()`, and `exhausted` is True.
    """

    __slots__ = (
        "_random",
        "budget_s",
        "exhausted",
        "may_begin",
        "now_s",
        "number",
        "pending",
        "purpose",
        "seed",
        "space",
        "trial_id",
    )

    def __init__(
        self,
        number: int,
        trial_id: int,
        space: Space,
        *,
        seed: int = 0,
        purpose: str = "suggest",
        pending: Mapping[int, Mapping[str, object]] | None = None,
        now_s: float = 0.0,
        budget_s: float | None = None,
        exhausted: bool = False,
        may_begin: bool = True,
    ) -> None:
        self.number = number
        self.trial_id = trial_id
        self.space = space
        self.seed = seed
        self.purpose = purpose
        self.pending = {} if pending is None else pending
        self.now_s = now_s
        self.budget_s = budget_s
        self.exhausted = exhausted
        self.may_begin = may_begin
        self._random: Chance | None = None

    @property
    def random(self) -> Chance:
        """Chance for this one question. The same numbers for the same seed and number, on every machine."""
        if self._random is None:
            self._random = Chance(f"{self.seed}/{self.purpose}/{self.number}")
        return self._random


class Searcher(abc.ABC):
    """Base of searchers: implement `suggest` and `observe`, and hand an instance to a scheduler.

    The tuner runs a copy, so that one object may be given to several tuners. `begin` apart, its methods are called from
    one thread, the searcher's own: while it thinks, reports are answered.

    >>> class Always(Searcher):
    ...     def suggest(self, ask):
    ...         return {"learning_rate": 0.1}
    ...     def observe(self, observation):
    ...         print(f"trial {observation.trial_id} reported a loss of {observation.loss}")

    Attributes:
        answers_at_once: True for a searcher whose answer takes microseconds: it has no thread, and is asked where
            reports are answered, which wait for it.
        budget_s: seconds that a free worker may wait for a suggestion; then a random configuration is used, and
            recorded as such. The next suggestion is then asked for before a worker is free. None: as long as it takes.
            Of no use beside `answers_at_once`.
        levels: resource levels in increasing order, for searchers with a model: they learn from each trial's first
            report at the highest level that enough trials have reached. Empty: from each trial's last report. The
            scheduler sets them before `begin` if it was given the searcher by name.
        libraries: packages of whose versions the suggestions depend, under their names in an index: they are recorded,
            and a replay beside other versions takes the suggestions from the record. Empty: the same everywhere.
    """

    answers_at_once: ClassVar[bool] = False
    budget_s: ClassVar[float | None] = None
    levels: tuple[float, ...] = ()
    libraries: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def suggest(self, ask: Ask) -> Mapping[str, object] | None:
        """The configuration for trial `ask.trial_id`; constants may be left out.

        None says: nothing now. It is asked again when something was observed or has ended; the search ends when
        nothing runs.
        """

    @abc.abstractmethod
    def observe(self, observation: Observation) -> None:
        """A trial reported. Not called again for an iteration that a resumed trial repeats."""

    def recall(self, ask: Ask, config: Mapping[str, object] | None) -> None:
        """An experiment is resumed, and this is what was suggested then. Asks itself again, to be where it was.

        A searcher that thinks overrides this with what it has to note.
        """
        self.suggest(ask)

    def check(self, space: Space) -> None:  # noqa: B027  # optional
        """Look whether the settings fit the space; ValueError if not. Changes nothing."""

    def begin(self, space: Space, seed: int) -> None:  # noqa: B027  # optional
        """A search begins. What `__init__` set up is untouched: this is a fresh copy."""

    def on_rewind(self, trial_id: int, to_iter: int) -> None:  # noqa: B027  # optional
        """The observations of the trial after iteration `to_iter` are void."""

    def on_end(self, trial_id: int, status: str) -> None:  # noqa: B027  # optional
        """The trial is over for good: "Completed", "Stopped" or "Failed"."""

    def describe(self) -> dict[str, object]:
        """Name and settings as JSON, for the record."""
        return {"name": type(self).__name__}
