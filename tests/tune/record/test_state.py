"""The state of a search is compared with a model, which computes every value from the whole list of events."""

import math
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from recorded_search import RecordedSearch

from fanwise.base.errors import RecordError
from fanwise.tune.record.event_codec import RecordedEvent
from fanwise.tune.record.state import SearchState

N_WORKERS = 3
# Few values, so that there are ties.
LOSSES: st.SearchStrategy[object] = st.sampled_from(
    [1.0, 2, 0, -1.5, math.nan, math.inf, -math.inf, None, "text", True]
)


META = {"name": "e", "metric": "loss", "mode": "min", "n_workers": N_WORKERS, "space": {"lr": {}}}


class Search:
    """Collects the rows of an invented search."""

    def __init__(self) -> None:
        self.events: list[RecordedEvent] = []
        self.now_s = 0.0
        self.rows = RecordedSearch(self._collect)

    def _collect(self, t_s: float, kind: str, trial_id: int | None, body: dict[str, Any]) -> None:  # Any: JSON
        self.events.append(RecordedEvent(len(self.events) + 1, t_s, kind, trial_id, body))

    def start(self, trial_id: int, attempt: int = 0, slot: int = 0) -> None:
        self.rows.start(self.now_s, trial_id, {"lr": trial_id / 10}, attempt=attempt, slot=slot)

    def ready(self, trial_id: int, attempt: int = 0) -> None:
        self.rows.ready(self.now_s, trial_id, attempt=attempt)

    def report(self, trial_id: int, attempt: int = 0, number: int = 1, **values: Any) -> None:  # Any: JSON
        self.rows.report(self.now_s, trial_id, number, values, attempt=attempt, worker_time_s=0.5)

    def end(
        self,
        trial_id: int,
        attempt: int = 0,
        status: str = "Completed",
        objective_s: float | None = None,
        will_retry: bool = False,
    ) -> None:
        failed = {"kind": "exception", "text": "ValueError: no", "traceback": "T", "last_output": "O"}
        reason = failed if status == "Failed" else None
        self.rows.end(self.now_s, trial_id, status, objective_s, attempt=attempt, reason=reason, will_retry=will_retry)

    def state(self, **meta: Any) -> SearchState:  # Any: JSON
        history = SearchState({**META, **meta}, full=True)
        history.add_events(self.events)
        return history


class Runs(RuleBasedStateMachine):
    """A search with up to three slots, retries, stops, and valid and invalid values. Every step is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.search = Search()
        self.history = SearchState(META, full=True)
        self.num_trials = 0
        self.busy: dict[int, tuple[int, int, str]] = {}  # slot: trial, attempt, state
        self.waiting: dict[int, int] = {}  # trial: next attempt

    def free_slots(self) -> list[int]:
        return [slot for slot in range(N_WORKERS) if slot not in self.busy]

    def slots(self, *states: str) -> list[int]:
        return [slot for slot, (_, _, state) in self.busy.items() if state in states]

    @property
    def stopped(self) -> bool:
        return any(has(event, "stop") for event in self.search.events)

    @rule(by_s=st.floats(0.001, 100.0))
    def time_passes(self, by_s: float) -> None:
        self.search.now_s += by_s

    @precondition(lambda self: self.free_slots() and not self.stopped)
    @rule(data=st.data(), at_once=st.booleans())
    def start(self, data: st.DataObject, at_once: bool) -> None:
        slot = data.draw(st.sampled_from(self.free_slots()))
        trial_id, attempt = self.num_trials, 0
        if self.waiting:
            trial_id, attempt = self.waiting.popitem()
        else:
            self.num_trials += 1
        self.busy[slot] = (trial_id, attempt, "starting")
        self.search.start(trial_id, attempt, slot)
        if at_once:
            self.busy[slot] = (trial_id, attempt, "running")
            self.search.ready(trial_id, attempt)

    @precondition(lambda self: self.slots("starting"))
    @rule(data=st.data())
    def ready(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.slots("starting")))
        trial_id, attempt, _ = self.busy[slot]
        self.busy[slot] = (trial_id, attempt, "running")
        self.search.ready(trial_id, attempt)

    @precondition(lambda self: self.slots("running"))
    @rule(data=st.data(), losses=st.lists(LOSSES, min_size=1, max_size=4))
    def report(self, data: st.DataObject, losses: list[object]) -> None:
        for loss in losses:
            trial_id, attempt, _ = self.busy[data.draw(st.sampled_from(self.slots("running")))]
            second_metric = data.draw(st.sampled_from(["epoch", "accuracy"]))
            values: dict[str, object] = {second_metric: data.draw(st.sampled_from([1, 1, 3, 4]))}
            values |= {} if loss is None else {"loss": loss}
            self.search.report(trial_id, attempt, len(self.search.events), **values)

    @precondition(lambda self: self.slots("starting", "running"))
    @rule(data=st.data(), status=st.sampled_from(["Completed", "Stopped", "Failed"]))
    def end(self, data: st.DataObject, status: str) -> None:
        slot = data.draw(st.sampled_from(self.slots("starting", "running")))
        trial_id, attempt, _ = self.busy[slot]
        will_retry = status == "Failed" and data.draw(st.booleans())
        self.busy[slot] = (trial_id, attempt, "ended")
        if will_retry:
            self.waiting[trial_id] = attempt + 1
        self.search.end(trial_id, attempt, status, self.objective_s(data, trial_id, attempt), will_retry)

    def objective_s(self, data: st.DataObject, trial_id: int, attempt: int) -> float | None:
        """Return the duration that the worker measured, at most the time since its Ready, or None."""
        began_s = [
            event.t_s
            for event in self.search.events
            if event.kind == "ready" and (event.trial_id, event.body["attempt"]) == (trial_id, attempt)
        ]
        if not began_s:
            return None
        share: float | None = data.draw(st.none() | st.floats(0, 1))
        return None if share is None else share * (self.search.now_s - began_s[0])

    @precondition(lambda self: self.slots("ended"))
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.slots("ended")))
        trial_id, attempt, _ = self.busy.pop(slot)
        self.search.rows.free(self.search.now_s, trial_id, attempt=attempt)

    @precondition(lambda self: self.num_trials > N_WORKERS)  # an early stop would leave nothing to test
    @rule()
    def stop(self) -> None:
        self.search.rows.stop(self.search.now_s, "enough")

    @precondition(lambda self: self.stopped and not self.busy)
    @rule()
    def finish(self) -> None:
        self.search.rows.finish(self.search.now_s, "enough")

    @rule()
    def event_of_a_later_version(self) -> None:
        self.search.rows.add(self.search.now_s, "something", None, {"path": "x"})

    @invariant()
    def state_equals_the_model(self) -> None:
        self.check_incremental_state()
        self.check_trials_and_reports()
        self.check_worker_time()
        self.check_free_slots()

    def check_incremental_state(self) -> None:
        self.history.add_events(self.search.events[self.history.last_seq :])
        second_state = self.search.state()
        assert (self.history.trials, self.history.reports) == (second_state.trials, second_state.reports)
        assert self.history.snapshot() == second_state.snapshot()

    def check_trials_and_reports(self) -> None:
        events, history = self.search.events, self.history
        assert history.last_seq == len(events)
        assert history.finished == any(has(event, "finish") for event in events)
        statuses = {trial_id: history.status_of(trial) for trial_id, trial in history.trials.items()}
        assert statuses == {trial_id: model_status(events, trial_id) for trial_id in range(self.num_trials)}
        reports = [event for event in events if event.kind == "report"]
        assert list(history.reports.trial_ids) == [event.trial_id for event in reports]
        for name in ("loss", "epoch", "accuracy"):
            column = [event.body["values"].get(name) for event in reports]
            assert history.reports.values.get(name, [None] * len(reports)) == column
        assert history.counted_mask() == [model_counts(events, event) for event in reports]
        for mode, bound in (("min", None), ("max", 2), ("min", 2)):
            constraints = [] if bound is None else [f"epoch <= {bound}"]
            state = self.search.state(mode=mode, constraints=constraints)
            best, index = state.best(), model_best(events, mode, bound)
            assert (best is None) == (index is None)
            if best is not None and index is not None:
                report, columns = (best.trial_id, best.iter, best.value), state.reports
                assert report == (columns.trial_ids[index], columns.iters[index], columns.values["loss"][index])

    def check_worker_time(self) -> None:
        events, history = self.search.events, self.history
        for trial_id, trial in history.trials.items():
            if trial.last.ended_s is not None:
                assert trial.worker_time_s == pytest.approx(model_time_s(events, trial_id, math.inf))
        expected = model_utilization(events)
        utilization = history.utilization.share(history.last_s)
        assert utilization == (None if expected is None else pytest.approx(min(1.0, expected)))

    def check_free_slots(self) -> None:
        busy_attempts = {(trial_id, attempt) for trial_id, attempt, _ in self.busy.values()}
        for trial in self.history.trials.values():
            for attempt in trial.attempts:
                assert (attempt.free_s is None) == ((trial.trial_id, attempt.number) in busy_attempts)


def has(event: RecordedEvent, name: str) -> bool:
    return any(action["action"] == name for action in event.body.get("actions", ()))


def actions(
    events: list[RecordedEvent], name: str, trial_id: int
) -> list[tuple[RecordedEvent, dict[str, Any]]]:  # Any: JSON
    """Return the actions of this kind about the trial, each with its row."""
    rows = [(event, action) for event in events for action in event.body.get("actions", ())]
    return [(e, action) for e, action in rows if action["action"] == name and action["trial"] == trial_id]


def model_counts(events: list[RecordedEvent], report: RecordedEvent) -> bool:
    assert report.trial_id is not None
    return bool(
        report.body["attempt"] == max(action["attempt"] for _, action in actions(events, "start", report.trial_id))
    )


def model_status(events: list[RecordedEvent], trial_id: int) -> str:
    pairs = [*actions(events, "start", trial_id), *actions(events, "judged", trial_id)]
    last = max(pairs, key=lambda pair: (pair[0].seq, pair[1]["action"]))[1]
    will_retry = last.get("will_retry") and not any(has(event, "stop") for event in events)
    return "InProgress" if last["action"] == "start" or will_retry else str(last["status"])


def model_best(events: list[RecordedEvent], mode: str, bound: int | None) -> int | None:
    """Return the index of the best report. Reports with an "epoch" above the bound rank last."""
    best: tuple[float, float] | None = None
    best_index: int | None = None
    for index, event in enumerate(event for event in events if event.kind == "report"):
        value = event.body["values"].get("loss")
        if value is None or isinstance(value, str) or not math.isfinite(value) or not model_counts(events, event):
            continue
        epoch = event.body["values"].get("epoch")
        if bound is not None and epoch is None:
            continue
        rank = (0.0 if bound is None else max(epoch - bound, 0), value if mode == "min" else -value)
        if best is None or rank < best:
            best, best_index = rank, index
    return best_index


def model_time_s(events: list[RecordedEvent], trial_id: int, until_s: float) -> float:
    total_s = 0.0
    for ready in (event for event in events if event.kind == "ready" and event.trial_id == trial_id):
        number = ready.body["attempt"]
        ends = [e for e in events if e.kind == "ended" and e.trial_id == trial_id and e.body["attempt"] == number]
        spent_s = (ends[0].t_s if ends else events[-1].t_s) - ready.t_s
        if ends and ends[0].body["objective_s"] is not None:
            spent_s = ends[0].body["objective_s"]
        total_s += max(0.0, min(spent_s, until_s - ready.t_s))
    return total_s


def model_utilization(events: list[RecordedEvent]) -> float | None:
    ready_s = [event.t_s for event in events if event.kind == "ready"]
    stop_s = [event.t_s for event in events if has(event, "stop")]
    end_s = stop_s[0] if stop_s else (events[-1].t_s if events else 0.0)
    if not ready_s or end_s <= ready_s[0]:
        return None
    trials = {event.trial_id for event in events if event.kind == "ready" and event.trial_id is not None}
    return sum(model_time_s(events, trial_id, end_s) for trial_id in trials) / (N_WORKERS * (end_s - ready_s[0]))


TestRuns = Runs.TestCase


def test_best_report_of_a_trial_is_the_first_best_finite_one() -> None:
    search = Search()
    for trial_id in (0, 1):
        search.start(trial_id, slot=trial_id)
    for number, value in enumerate([math.nan, 2.0, 1.0, 1.0, -math.inf, math.inf], 1):
        search.report(0, number=number, loss=value)
    search.report(1, loss=math.nan)
    for mode, iter in (("min", 3), ("max", 2)):
        history = search.state(mode=mode)
        first, second = history.trials[0].best, history.trials[1].best
        assert first is not None and first.iter == iter
        assert second is None


def test_missing_fields_and_unknown_trials_are_damage() -> None:
    for kind, trial_id, body in [
        ("report", 0, {"attempt": 0, "decision": "CONTINUE"}),
        ("tick", None, {"actions": [{"action": "start", "trial": 1, "attempt": 0, "slot": 0}]}),
        ("tick", None, {"actions": [{"action": "start", "attempt": 0, "slot": 0, "config": {}}]}),
        ("ready", 0, {"attempt": 1}),
        ("ended", 0, {}),
        ("ended", 0, []),
        ("free", 0, {"attempt": 7}),
        ("ready", 9, {"attempt": 0}),
    ]:
        search = Search()
        search.start(0)
        event = RecordedEvent(2, 0.0, kind, trial_id, body)  # type: ignore[arg-type]  # one body is a list
        with pytest.raises(RecordError, match=f"damaged: event 2 .'{kind}' of trial {trial_id}"):
            SearchState(META, full=True).add_events([*search.events, event])
