"""A scheduler and a searcher that follow a script, for tests of `SearchCore`.

The scheduler answers `next` by a plan of words ("new", "own", "resume", "clone", "stop", "wait", "done", "wrong"), and
a report by its value "ask" ("stop", "pause", "break"). Both record their calls.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fanwise.tune.schedulers import Clone, Decision, Done, New, Resume, Scheduler, Status, Stop, Wait
from fanwise.tune.searchers import Mode, Observation, Searcher, SuggestContext
from fanwise.tune.space import Space, randint

SPACE = Space({"n": randint(0, 10**6)})
SEED = 7


def planned_answer(word: str, number: int, trial_id: int, paused: Sequence[int]) -> Any:  # Any: an invalid one too
    """Return the answer that a word of the plan stands for.

    Args:
        word: the word.
        number: selects the paused trial, or the source of a clone.
        trial_id: id of a new trial.
        paused: the paused trials.
    """
    if word in ("resume", "stop"):
        if not paused:
            return Wait()
        paused_id = sorted(paused)[number % len(paused)]
        return Resume(paused_id) if word == "resume" else Stop(paused_id)
    if word == "clone" and trial_id:
        return Clone(number % trial_id, {"n": 2000 + trial_id})
    return {"own": New({"n": 1000 + trial_id}), "wait": Wait(), "done": Done(), "wrong": "next"}.get(word, New())


class ScriptedSearcher(Searcher):
    """Never called for suggestions: the test passes them to `SearchCore` as events."""

    def __init__(self, suggest_timeout_s: float | None, *, at_once: bool) -> None:
        self.suggest_timeout_s = suggest_timeout_s  # type: ignore[misc]  # each instance has its own
        self.runs_inline = at_once  # type: ignore[misc]
        self.calls: list[tuple[object, ...]] = []

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        raise AssertionError("the test answers")

    def observe(self, observation: Observation) -> None:
        self.calls.append(_report(observation))

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.calls.append(("rewind", trial_id, to_iter))

    def on_end(self, trial_id: int, status: str) -> None:
        self.calls.append(("end", trial_id, status))


class ScriptedScheduler(Scheduler):
    """See the module. Keeps track of the trials that it has paused, as a scheduler does."""

    def __init__(
        self, mode: Mode, maximum: float | None, clones: bool, searcher: Searcher, *, constraints: Sequence[str] = ()
    ) -> None:
        super().__init__(searcher, metric="loss", mode=mode, constraints=constraints)
        self.max_resource = maximum
        self.clones = clones  # type: ignore[misc]  # each instance has its own
        self.plan: deque[tuple[str, int]] = deque()
        self.paused: set[int] = set()
        self.calls: list[tuple[object, ...]] = []

    def next(self, context: SuggestContext) -> Any:  # Any: an invalid answer too
        flags = (context.no_new_configs, context.can_start_trial)
        self.calls.append(("next", context.number, context.trial_id, *flags, dict(context.pending)))
        word, number = self.plan.popleft() if self.plan else ("new", 0)
        answer = planned_answer(word, number, context.trial_id, list(self.paused))
        if isinstance(answer, Resume | Stop):
            self.paused.remove(answer.trial_id)
        return answer

    def on_report(self, observation: Observation) -> Decision:
        self.calls.append(_report(observation))
        word = observation.values.get("ask", "")
        if word == "break":
            raise ZeroDivisionError("scripted")
        if word == "pause":
            self.paused.add(observation.trial_id)
            return Decision.PAUSE
        return Decision.STOP if word == "stop" else Decision.CONTINUE

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.calls.append(("rewind", trial_id, to_iter))

    def on_end(self, trial_id: int, status: Status) -> None:
        self.paused.discard(trial_id)
        self.calls.append(("end", trial_id, str(status)))


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a scripted search.

    Args:
        at_once: the searcher's answer is the next event.
        bound: upper bound of the reported value "cost".
        limits: arguments of the StoppingCriterion.
    """

    n_workers: int
    asynchronous: bool
    timeout_s: float | None
    grace_s: float
    max_equal_failures: int | None
    retries: int
    keeps_checkpoints: bool
    clones: bool
    mode: Mode
    max_resource: float | None
    at_once: bool
    suggest_timeout_s: float | None
    bound: float | None
    limits: Mapping[str, Any]

    @property
    def constraints(self) -> list[str]:
        return [] if self.bound is None else [f"cost <= {self.bound}"]

    def scheduler(self) -> ScriptedScheduler:
        searcher = ScriptedSearcher(self.suggest_timeout_s, at_once=self.at_once)
        return ScriptedScheduler(self.mode, self.max_resource, self.clones, searcher, constraints=self.constraints)


def _report(observation: Observation) -> tuple[object, ...]:
    return "report", observation.trial_id, observation.iter, observation.loss, observation.infeasibility
