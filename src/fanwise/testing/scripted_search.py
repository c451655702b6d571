"""A scheduler and a searcher that do what a test says, and note what they hear.

The scheduler answers `next` by a plan of words ("new", "own", "resume", "clone", "stop", "wait", "done", "wrong"),
and a report by what stands in it under "ask" ("stop", "pause", "wrong", "break"). Loads no pytest.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ..tune.schedulers import Clone, Decision, Done, New, Resume, Scheduler, Status, Stop, Wait
from ..tune.searchers import Mode, Observation, Searcher, SuggestContext

_DECISIONS = {"stop": Decision.STOP, "pause": Decision.PAUSE, "wrong": "stop"}


def planned_answer(what: str, which: int, trial_id: int, paused: Sequence[int]) -> Any:  # Any: a wrong one too
    """What a planned word means to the scheduler that knows these paused trials; the new trial would be `trial_id`."""
    if what in ("resume", "stop"):
        if not paused:
            return Wait()
        chosen = sorted(paused)[which % len(paused)]
        return Resume(chosen) if what == "resume" else Stop(chosen)
    if what == "clone" and trial_id:
        return Clone(which % trial_id, {"n": 2000 + trial_id})
    others = {"own": New({"n": 1000 + trial_id}), "wait": Wait(), "done": Done(), "wrong": "next"}
    return others.get(what, New())


def _heard(observation: Observation) -> tuple[object, ...]:
    return "report", observation.trial_id, observation.iter, observation.loss, observation.infeasibility


class ScriptedSearcher(Searcher):
    """Never asked by itself: the test hands in what it suggests. `calls`: what it heard."""

    def __init__(self, suggest_timeout_s: float | None, *, at_once: bool) -> None:
        self.suggest_timeout_s = suggest_timeout_s  # type: ignore[misc]  # of each one its own
        self.runs_inline = at_once  # type: ignore[misc]
        self.calls: list[tuple[object, ...]] = []

    def suggest(self, ask: SuggestContext) -> Mapping[str, object] | None:
        raise AssertionError("the test answers")

    def observe(self, observation: Observation) -> None:
        self.calls.append(_heard(observation))

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.calls.append(("rewind", trial_id, to_iter))

    def on_end(self, trial_id: int, status: str) -> None:
        self.calls.append(("end", trial_id, status))


class ScriptedScheduler(Scheduler):
    """See the module. Knows which trials it has paused, as a scheduler does."""

    def __init__(
        self, mode: Mode, maximum: float | None, clones: bool, searcher: Searcher, *, constraints: Sequence[str] = ()
    ) -> None:
        super().__init__(searcher, metric="loss", mode=mode, constraints=constraints)
        self.max_resource = maximum
        self.clones = clones  # type: ignore[misc]  # of the test
        self.plan: deque[tuple[str, int]] = deque()
        self.paused: set[int] = set()
        self.calls: list[tuple[object, ...]] = []

    def next(self, ask: SuggestContext) -> Any:  # Any: a wrong answer too
        self.calls.append(
            ("next", ask.number, ask.trial_id, ask.no_new_configs, ask.can_start_trial, dict(ask.pending))
        )
        what, which = self.plan.popleft() if self.plan else ("new", 0)
        answer = planned_answer(what, which, ask.trial_id, list(self.paused))
        if isinstance(answer, Resume | Stop):
            self.paused.remove(answer.trial_id)
        return answer

    def on_report(self, observation: Observation) -> Any:  # Any: a wrong decision too
        self.calls.append(_heard(observation))
        asked = observation.values.get("ask", "")
        if asked == "break":
            raise ZeroDivisionError("scripted")
        if asked == "pause":
            self.paused.add(observation.trial_id)
        return _DECISIONS.get(str(asked), Decision.CONTINUE)

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.calls.append(("rewind", trial_id, to_iter))

    def on_end(self, trial_id: int, status: Status) -> None:
        self.paused.discard(trial_id)
        self.calls.append(("end", trial_id, str(status)))
