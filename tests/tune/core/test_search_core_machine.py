"""`SearchCore` is compared with a reference model after each event: all actions and the whole state.

The model (`search_core_model`) keeps the whole history and derives each answer from it. Broken versions of the core
show that the comparison can fail. At the end, the events are written to rows of a record, read and replayed.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from scripted_search import SEED, SPACE, ScriptedScheduler, SearchSettings
from search_core_model import CRASHES, SearchModel, Trial

from fanwise.tune.core import events
from fanwise.tune.core.actions import Action, Answer, Finish, Reject, Suggest
from fanwise.tune.core.events import Event, Outcome
from fanwise.tune.core.search_core import SearchCore
from fanwise.tune.core.trials import Trial as CoreTrial
from fanwise.tune.core.trials import Trials
from fanwise.tune.record.event_codec import RecordedActions, event_of, to_row
from fanwise.tune.record.replay import Row, replay
from fanwise.tune.schedulers import Resume
from fanwise.tune.stopping import Counts, StoppingCriterion

NEVER = st.just({"max_wallclock_time": math.inf})
COUNT = st.sampled_from([None, None, None, 1, 4, 8])
LIMITS = st.fixed_dictionaries(
    {
        "max_wallclock_time": st.sampled_from([math.inf, math.inf, 20.0, 60.0]),
        "max_num_trials_started": COUNT,
        "max_num_trials_completed": COUNT,
        "max_num_evaluations": COUNT,
        "max_num_trials_without_improvement": st.sampled_from([None, None, 1, 2, 3]),
        "min_metric_value": st.sampled_from([None, None, 0.0]),
        "max_metric_value": st.sampled_from([None, None, 9.0]),
    },
    optional={"max_hypervolume": st.sampled_from([1.0, 9.0])},
).map(lambda limits: {**limits, "reference_point": {"loss": 2.5}} if "max_hypervolume" in limits else limits)
# Limits are rare, most reports are good and have few different values, and most failures are alike. Otherwise
# most searches end early, and ties never occur.
SETTINGS = st.builds(
    SearchSettings,
    n_workers=st.sampled_from([2, 3, 1]),
    asynchronous=st.sampled_from([True, True, True, False]),
    timeout_s=st.sampled_from([None, 6.0]),
    grace_s=st.sampled_from([0.0, 2.0]),
    max_equal_failures=st.sampled_from([None, None, 2, 3]),
    retries=st.integers(0, 2),
    keeps_checkpoints=st.sampled_from([False, False, True]),
    clones=st.sampled_from([False, True]),
    mode=st.sampled_from(["min", "max"]),
    max_resource=st.sampled_from([None, 2.0]),
    at_once=st.sampled_from([True, False, False]),
    suggest_timeout_s=st.sampled_from([None, 2.0]),
    bound=st.sampled_from([None, None, 2.0, 0.0]),
    limits=st.one_of(NEVER, NEVER, NEVER, LIMITS),
)
LOSSES = st.sampled_from([1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 0.0, 9.0, math.inf, -math.inf, math.nan])
COSTS = st.sampled_from([0.0, 0.0, 2.0, 3.0, 3.0, 8.0, math.inf, math.nan])
VALID = st.fixed_dictionaries(
    {"loss": LOSSES, "cost": COSTS}, optional={"ask": st.sampled_from(["stop", "pause", "pause", "", "", ""])}
)
INVALID = st.sampled_from(
    [{"los": 1.0}, {"loss": "low"}, {"loss": 1.0, "ask": "break", "cost": 0.0}, {"loss": 1.0}, {"loss": 2.0}]
)
VALUES = st.integers(0, 19).flatmap(lambda number: INVALID if number == 7 else VALID)
OUTCOMES = st.builds(
    Outcome,
    kind=st.sampled_from(["returned", "stopped", *CRASHES, "exception", "exception", *["returned"] * 5]),
    text=st.sampled_from(["boom 1", "boom 2\nin detail", "boom 1", "bang"]),
    traceback=st.sampled_from(["", "Traceback"]),
    retry_alone=st.booleans(),
)
WORDS = st.sampled_from(["new", "own", "resume", "resume", "resume", "clone", "clone", "stop", "wait"])
PLANS = st.lists(st.tuples(WORDS, st.integers(0, 3)), max_size=3)
SUGGESTIONS = st.sampled_from(["config", "config", "config", "config", "config", "config", "nothing", "error"])
INDEX = st.integers(0, 2)


class CoreMachine(RuleBasedStateMachine):
    """Sends events in any order to SearchCore and to the model."""

    mutation: ClassVar["Mutation | None"] = None

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.has_begun = False
        self.num_saved = self.num_suggested = self.num_finishes = 0
        self.requests: list[int] = []
        self.words: list[tuple[str, int]] = []  # planned since the last event
        self.rows: list[tuple[list[tuple[str, int]], float, str, int | None, str]] = []

    @initialize(search=SETTINGS)
    def begin(self, search: SearchSettings) -> None:
        self.search = search
        self.scheduler, self.core = new_core(search, self.mutation)
        self.model = SearchModel(search)
        self.has_begun = True
        self.send(events.Begin(self.now_s))

    def send(self, event: Event, suggestion: str = "config") -> list[Action]:
        """Send the event, and the answer of a searcher that answers at once."""
        actions = self.core.handle(event)
        expected = self.model.handle(event)
        assert list(map(comparable, actions)) == list(map(comparable, expected))
        kind, trial_id, body = to_row(event, actions)
        self.rows.append((self.words, event.now_s, kind, trial_id, json.dumps(body)))
        self.words = []
        for action in actions:
            if isinstance(action, Finish):
                self.num_finishes += 1
                assert (action.cause is not None) == (action.kind == "scheduler")
            if isinstance(action, Suggest):
                self.requests.append(action.number)
        if self.search.at_once and self.requests and not isinstance(event, events.Suggested):
            self.suggest(0, suggestion)
        return actions

    def suggest(self, index: int, suggestion: str) -> None:
        """Answer one of the requests to the searcher."""
        number = self.requests.pop(index % len(self.requests))
        self.num_suggested += suggestion == "config"
        config = {"n": self.num_suggested} if suggestion == "config" else None
        self.send(events.Suggested(self.now_s, number, config, error="oops" if suggestion == "error" else None))
        if self.search.at_once and self.requests:
            self.suggest(0, "config")

    def pick(self, index: int) -> tuple[int, int]:
        """Return the id and the attempt of a trial that uses a slot, or (index, 0) if no trial does."""
        active = self.model.active()
        trial = active[index % len(active)] if active else None
        return (trial.trial_id, trial.attempt) if trial is not None else (index, 0)

    def save(self, saves: bool) -> str | None:
        self.num_saved += saves
        return f"c{self.num_saved}" if saves else None

    def advance(self, index: int, values: dict[str, object], saves: int, outcome: Outcome, suggestion: str) -> None:
        """Take the usual next steps of an attempt: three reports if it runs, otherwise its end and a free slot."""
        active = self.model.active()
        if not active:
            self.send(events.Tick(self.now_s))
            return
        trial = active[index % len(active)]
        attempt = (trial.trial_id, trial.attempt)
        if trial.is_running and saves:
            for bit in (1, 2, 4):
                name = self.save(saves & bit > 0)
                self.send(events.Reported(self.now_s, *attempt, values, checkpoint=name), suggestion)
                if trial.stopping is not None:
                    return
            return
        if not trial.is_ended:
            self.send(events.Ended(self.now_s, *attempt, outcome))
        self.send(events.Free(self.now_s, *attempt), suggestion)

    @rule(index=INDEX, values=VALUES, saves=st.integers(0, 7), suggestion=SUGGESTIONS)
    def trial_advances(self, index: int, values: dict[str, object], saves: int, suggestion: str) -> None:
        self.advance(index, values, saves, Outcome("stopped"), suggestion)

    @rule(index=INDEX, values=VALUES, saves=st.integers(0, 7), outcome=OUTCOMES)
    def trial_ends_with_any_outcome(self, index: int, values: dict[str, object], saves: int, outcome: Outcome) -> None:
        self.advance(index, values, saves, outcome, "config")

    @rule(index=INDEX, saves=st.integers(0, 7), pauses=st.booleans())
    def trial_improves(self, index: int, saves: int, pauses: bool) -> None:
        self.advance(index, {"loss": 2.0, "cost": 1.0}, saves, Outcome("stopped"), "config")
        if pauses:
            self.advance(index, {"loss": 1.0, "cost": 3.0, "ask": "pause"}, saves, Outcome("stopped"), "config")
            self.advance(index, {"loss": 3.0, "cost": 0.0}, saves, Outcome("stopped"), "config")

    @rule(index=INDEX, saves=st.booleans(), word=st.sampled_from(["resume", "clone"]))
    def pausing_trial_is_resumed_or_cloned(self, index: int, saves: bool, word: str) -> None:
        """End another trial before the pausing one, so that a slot is free."""
        attempt, next_attempt = self.pick(index), self.pick(index + 1)
        self.plan([(word, attempt[0])])
        values = {"loss": 2.0, "cost": 3.0, "ask": "pause"}
        self.send(events.Reported(self.now_s, *attempt, values, checkpoint=self.save(saves)))
        if next_attempt != attempt:
            self.send(events.Ended(self.now_s, *next_attempt, Outcome("stopped")))
            self.send(events.Free(self.now_s, *next_attempt))

    @rule(index=INDEX, values=VALUES, saves=st.booleans())
    def report(self, index: int, values: dict[str, object], saves: bool) -> None:
        actions = self.send(events.Reported(self.now_s, *self.pick(index), values, checkpoint=self.save(saves)))
        assert [isinstance(action, Answer | Reject) for action in actions] == [True] + [False] * (len(actions) - 1)

    @rule(index=INDEX)
    def ready(self, index: int) -> None:
        self.send(events.Ready(self.now_s, *self.pick(index)))

    @rule(index=INDEX, outcome=OUTCOMES)
    def ended(self, index: int, outcome: Outcome) -> None:
        self.send(events.Ended(self.now_s, *self.pick(index), outcome))

    @rule(index=INDEX, suggestion=SUGGESTIONS)
    def free(self, index: int, suggestion: str) -> None:
        self.send(events.Free(self.now_s, *self.pick(index)), suggestion)

    @rule(words=PLANS, end=st.sampled_from(["", "", "", "", "", "", "", "done", "wrong"]))
    def scheduler_plans(self, words: list[tuple[str, int]], end: str) -> None:
        self.plan([*words, (end, 0)] if end else words)

    def plan(self, words: list[tuple[str, int]]) -> None:
        self.scheduler.plan.extend(words)
        self.model.plan.extend(words)
        self.words += words

    @rule(by_s=st.sampled_from([0.5, 1.0, 2.0, 5.0]), ticks=st.booleans())
    def time_passes(self, by_s: float, ticks: bool) -> None:
        self.now_s += by_s
        if ticks:
            self.send(events.Tick(self.now_s))

    @rule()
    def tick_when_it_is_due(self) -> None:
        due_s = self.core.next_tick_s
        if due_s is not None:
            self.now_s = max(self.now_s, due_s)
            actions = self.send(events.Tick(self.now_s))
            assert actions or self.core.next_tick_s != due_s, "a tick that is due has an effect"

    @rule(index=INDEX, suggestion=SUGGESTIONS)
    def searcher_answers(self, index: int, suggestion: str) -> None:
        if self.requests:
            self.suggest(index, suggestion)

    @rule(command=st.sampled_from(["pause", "pause", "resume", "resume", "stop"]), trial_id=st.integers(0, 6))
    def user_commands(self, command: Any, trial_id: int) -> None:  # Any: one of three literals
        self.send(events.Command(self.now_s, command, trial_id))

    @rule(change=st.sampled_from(["enqueue", "request", "workers", "interrupt"]), number=st.integers(1, 4))
    def user_changes_the_search(self, change: str, number: int) -> None:
        if change == "enqueue":
            self.send(events.Enqueued(self.now_s, {"n": 3000 + number}))
        elif change == "request" and not self.model.source.is_awaited:  # programs request again after an answer
            self.send(events.TrialRequested(self.now_s))
        elif change == "workers":
            self.send(events.WorkersChanged(self.now_s, number))
        elif change == "interrupt":
            self.send(events.Interrupt(self.now_s))

    @rule(number=st.integers(0, 3))
    def killed_and_resumed(self, number: int) -> None:
        if number == 2 or self.core.is_finished:
            self.requests.clear()
            self.num_finishes = 0
            self.send(events.Resumed(self.now_s))

    @rule(trial=st.integers(-1, 8), number=INDEX, kind=st.integers(0, 4), outcome=OUTCOMES)
    def stray_event(self, trial: int, number: int, kind: int, outcome: Outcome) -> None:
        """Send a late event, a duplicate, or an event about an unknown trial."""
        now_s = self.now_s
        if kind == 4:
            if not self.model.source.is_requested(number):
                self.send(events.Suggested(now_s, number, {"n": 99}))
        elif self.model.find(trial, number) is None:
            name = self.save(kind == 1)
            stray = (
                events.Ready(now_s, trial, number),
                events.Reported(now_s, trial, number, {"loss": 1.0}, checkpoint=name),
                events.Ended(now_s, trial, number, outcome),
                events.Free(now_s, trial, number),
            )
            self.send(stray[kind])

    @invariant()
    def states_are_equal(self) -> None:
        if not self.has_begun:
            return
        state, expected = state_of(self.core), state_of_model(self.model)
        for name, value in expected.items():
            assert (name, state[name]) == (name, value)
        assert state.keys() == expected.keys()
        assert self.scheduler.calls == self.model.calls
        assert searcher_calls(self.scheduler) == [call for call in self.model.calls if call[0] != "next"]
        assert vars(self.core).keys() == COMPARED | CONSTANT
        assert vars(trials_of(self.core)).keys() == COMPARED_OF_TRIALS | CONSTANT_OF_TRIALS

    @invariant()
    def search_finishes_once_and_then_nothing_runs(self) -> None:
        if self.has_begun:
            assert self.num_finishes == self.core.is_finished
            assert not (self.core.is_finished and self.model.active())

    def teardown(self) -> None:
        """Replay the events from their rows. Another core returns the same actions and has the same state."""
        if not self.has_begun or self.mutation is not None:
            return
        scheduler, core = new_core(self.search, None)

        def rows() -> Iterator[Row]:
            for seq, (words, now_s, kind, trial_id, text) in enumerate(self.rows):
                scheduler.plan.extend(words)
                body = json.loads(text)
                yield seq, event_of(kind, now_s, trial_id, body), RecordedActions(kind, trial_id, body)

        replayed = replay(core, None, rows(), compares_suggestions=True)
        assert (replayed.differences, replayed.num_events) == ([], len(self.rows))
        assert state_of(core) == state_of(self.core)
        assert scheduler.calls == self.scheduler.calls


def new_core(search: SearchSettings, mutation: "Mutation | None") -> tuple[ScriptedScheduler, SearchCore]:
    scheduler = search.scheduler()
    core = (mutation.core_class if mutation is not None else SearchCore)(
        scheduler,
        SPACE,
        StoppingCriterion(**search.limits),
        n_workers=search.n_workers,
        seed=SEED,
        asynchronous=search.asynchronous,
        trial_timeout_s=search.timeout_s,
        stop_grace_s=search.grace_s,
        max_equal_failures=search.max_equal_failures,
        retries=search.retries,
        keep_checkpoints=search.keeps_checkpoints,
    )
    if mutation is not None:
        mutation.apply_to(core)
    return scheduler, core


def comparable(action: Action) -> object:
    """Return the action in a form that can be compared, without the cause of a failure."""
    if isinstance(action, Suggest):
        context = action.context
        return (
            *(action.number, context.number, context.trial_id, dict(context.pending)),
            *(context.now_s, context.suggest_timeout_s),
        )
    return Finish(action.reason, action.error, None, action.kind) if isinstance(action, Finish) else action


def searcher_calls(scheduler: Any) -> list[tuple[object, ...]]:  # Any: a scheduler with a ScriptedSearcher
    calls: list[tuple[object, ...]] = scheduler.searcher.calls
    return calls


def trials_of(core: Any) -> Trials:  # Any: private
    trials: Trials = core._trials
    return trials


def state_of_model(model: SearchModel) -> dict[str, object]:
    finished = [trial for trial in model.trials if trial.state == "finished"]
    best = model.best_of(finished)
    keepers = finished if model.keeps_all else [] if best is None else [model.trials[best.trial_id]]
    unfinished = [trial for trial in model.trials if trial.state != "finished" or trial.uses_slot]
    times_s = [at_s for at_s, _ in model.deadlines().values()]
    times_s += [] if model.source.deadline_s is None else [model.source.deadline_s]
    if model.stage not in ("stopping", "finished"):
        times_s.append(model.settings.limits["max_wallclock_time"])
    return {
        "trials": {trial.trial_id: state_of_model_trial(trial, model) for trial in unfinished},
        "active": [trial.trial_id for trial in model.active()],
        "pending": model.pending(),
        "queued": [trial.trial_id for trial in model.queue],
        "suspended": [trial.trial_id for trial in model.suspended],
        "references": model.references(),
        "kept": {trial.trial_id: trial.checkpoints[-1].name for trial in keepers if trial.checkpoints},
        "deadlines": {trial_id: at_s for trial_id, (at_s, _) in model.deadlines().items()},
        "next tick": min(filter(math.isfinite, times_s), default=None),
        "best": full_rank(model.best_of(model.trials)),
        "counts": plain(model.counts),
        "failures": vars(model.failures),
        "slots": vars(model.slots),
        "suggestions": {**vars(model.source), "_actions": None},
        "search": (model.stage, True, model.is_interrupted, model.num_starts),
        "end": (model.reason, model.error, model.kind),
        "actions": [],
    }


def state_of_model_trial(trial: Trial, model: SearchModel) -> tuple[object, ...]:
    is_over, is_active = trial.state == "finished", trial.uses_slot
    state, plan = trial.state, ""
    if trial.state == "paused" and trial.runs_for_scheduler:
        state = "held"
    elif trial.state == "active":
        state = "running" if trial.ready is not None else "starting"
        state = "stopping" if trial.stopping is not None else state
        state = "attempt-ended" if trial.is_ended else "killed" if trial.is_killed else state
        plan = "retry" if trial.will_retry else trial.request
        if plan == "pause":
            plan = "drop" if trial.is_dropped else "hold" if trial.runs_for_scheduler else "pause"
        plan = "complete" if trial.at_maximum and plan == "stop" else plan
    checkpoint = trial.checkpoints[-1] if trial.checkpoints and not is_over else None
    iter = trial.from_iter if trial.will_retry else trial.iter
    return (
        (
            trial.attempt,
            trial.config,
            trial.num_retries,
            trial.has_counted_outcome,
            trial.needs_whole_gpu,
            trial.hold,
            trial.finish_when_free,
        ),
        ("finished" if is_over else state, plan, trial.reserved_slot),
        (trial.slot, trial.fault, iter) if is_active and not is_over else None,
        None if is_over else trial.reached,
        None if is_over else rank(model.best_of([trial])),
        checkpoint and (checkpoint.name, checkpoint.iter, rank(checkpoint.best)),
    )


def plain(counts: Counts) -> dict[str, object]:
    values = {item.name: getattr(counts, item.name) for item in dataclasses.fields(counts)}
    front = values["hypervolume_front"]
    return {**values, "pareto_front": counts.pareto_front.points, "hypervolume_front": front and front.volume}


def full_rank(report: Any) -> tuple[object, ...] | None:  # Any: of the model
    return report and (
        report.excess, report.loss, report.number, report.value, report.trial_id, report.iter, report.config
    )  # fmt: skip


def rank(report: Any) -> tuple[float, float, int] | None:  # Any: of the model
    return report and (report.excess, report.loss, report.number)


def state_of(core: Any) -> dict[str, object]:  # Any: private attributes
    """Return the state of the core in the form of `state_of_model`."""
    trials = core._trials
    groups = (trials.active, trials.paused, trials.queued, trials.suspended)
    unfinished = {trial_id: trial for group in groups for trial_id, trial in group.items()}
    assert len(unfinished) == sum(map(len, groups))
    return {
        "trials": {trial_id: state_of_trial(trial, trials) for trial_id, trial in unfinished.items()},
        "active": list(trials.active),
        "pending": trials.pending_configs,
        "queued": list(trials.queued),
        "suspended": list(trials.suspended),
        "references": dict(trials.checkpoint_refs),
        "kept": {trial_id: checkpoint.name for trial_id, checkpoint in trials._finished_checkpoints.items()},
        "deadlines": trials.deadlines._times_s,
        "next tick": core.next_tick_s,
        "best": core.best and core.best[:-1],
        "counts": plain(core.counts),
        "failures": vars(core._failures),
        "slots": vars(core._slots),
        "suggestions": {**vars(core._suggestions), "_actions": None},
        "search": (core._stage, core._has_begun, core._is_interrupted, core._num_starts),
        "end": (core._reason, core._error, core._kind),
        "actions": core._actions,
    }


def state_of_trial(trial: CoreTrial, trials: Trials) -> tuple[object, ...]:
    is_active, checkpoint = trial.trial_id in trials.active, trial.checkpoint
    fault = trial.fault and (trial.fault.kind, trial.fault.text)
    return (
        (
            trial.attempt,
            trial.config,
            trial.num_retries,
            trial.has_counted_outcome,
            trial.needs_whole_gpu,
            trial.hold,
            trial.finish_when_free,
        ),
        (trial.state, trial.plan, trial.reserved_slot),
        (trial.slot, fault, trial.iter) if is_active and trial.state != "finished" else None,
        None if trial.state == "finished" else trial.last_observed_iter,
        trial.best and trial.best[:3],
        checkpoint and (checkpoint.name, checkpoint.iter, checkpoint.best and checkpoint.best[:3]),
    )


# A new attribute of the core must be compared above, or be constant during a search.
COMPARED = {"_trials", "_slots", "_suggestions", "counts", "_failures", "_actions", "_stage", "_has_begun"}
COMPARED |= {"_is_interrupted", "_num_starts", "_reason", "_error", "_kind", "_cause"}
CONSTANT = {"_scheduler", "_space", "_criterion", "_seed", "_objectives", "_metric", "_signs", "_listener"}
CONSTANT |= {"_handlers", "_resource_attr", "_constraints", "_required"}
COMPARED_OF_TRIALS = {"active", "pending_configs", "paused", "queued", "suspended", "deadlines", "checkpoint_refs"}
COMPARED_OF_TRIALS |= {"_actions", "_finished_checkpoints", "_finished_best"}
CONSTANT_OF_TRIALS = {"_metric", "_timeout_s", "_grace_s", "_retries", "_keeps_checkpoints"}


@pytest.mark.parametrize("max_examples", [50, pytest.param(1000, marks=pytest.mark.soak)])
def test_core_equals_its_model(max_examples: int) -> None:
    run_state_machine_as_test(
        CoreMachine, settings=settings(max_examples=max_examples, stateful_step_count=40, deadline=None)
    )


# Broken versions, each with one method replaced. Any: they access private attributes.


class Mutation:
    """Replaces one method of the core or of one of its parts. `function(original, self, ...)` is the new method."""

    def __init__(self, part: str, method: str, function: Callable[..., Any]) -> None:
        self.part, self.method, self.function = part, method, function
        self.core_class: Any = SearchCore if part else self.broken(SearchCore)

    def broken(self, original_class: type) -> type:
        original, function = getattr(original_class, self.method), self.function
        return type("Broken", (original_class,), {self.method: lambda *args, **more: function(original, *args, **more)})

    def apply_to(self, core: SearchCore) -> None:
        if self.part:
            part = getattr(core, self.part)
            part.__class__ = self.broken(type(part))


MUTATIONS: list[Mutation] = []


def mutation(method: str, part: str = "") -> Callable[[Callable[..., Any]], None]:
    return lambda function: MUTATIONS.append(Mutation(part, method, function))


@mutation("_end_attempt")
def starts_a_trial_before_the_slot_is_free(
    original: Any, self: Any, trial: Any, outcome: Outcome, now_s: float
) -> None:
    original(self, trial, outcome, now_s)
    if trial.plan != "retry":
        self._release(trial, now_s)
        self._fill(now_s)


@mutation("_may_retry", "_trials")
def retries_every_failure(original: Any, self: Any, trial: Any, reason: Any, outcome: Any) -> bool:
    return bool(trial.num_retries < self._retries and not trial.plan)


@mutation("_end_attempt")
def counts_failures_after_a_pause(original: Any, self: Any, trial: Any, outcome: Outcome, now_s: float) -> None:
    trial.has_counted_outcome = False
    original(self, trial, outcome, now_s)


@mutation("begin_stopping", "_trials")
def forgets_the_grace_period(original: Any, self: Any, trial: Any, plan: str, now_s: float) -> None:
    original(self, trial, plan, now_s)
    self.deadlines.clear(trial.trial_id)


@mutation("_halt")
def lets_running_trials_run(original: Any, self: Any, reason: str, now_s: float) -> None:
    self._stop_starting(reason)


@mutation("_decide")
def keeps_the_last_of_equal_reports(original: Any, self: Any, trial: Any, *args: Any) -> Any:
    decision = original(self, trial, *args)
    if trial.best is not None:
        trial.best = trial.best._replace(number=-abs(trial.best.number))
    return decision


@mutation("_decide")
def ranks_infeasible_reports_as_feasible(original: Any, self: Any, trial: Any, *args: Any) -> Any:
    decision = original(self, trial, *args)
    if trial.best is not None:
        trial.best = trial.best._replace(infeasibility=0.0)
    return decision


@mutation("_resume_or_stop")
def resumes_a_trial_before_its_slot_is_free(original: Any, self: Any, answer: Any, now_s: float) -> None:
    trial = self._trials.active.pop(answer.trial_id, None) if isinstance(answer, Resume) else None
    if trial is None:
        original(self, answer, now_s)
    else:
        self._start(trial)


@mutation("_discard", "_trials")
def never_discards_a_checkpoint(original: Any, self: Any, checkpoint: Any, trial_id: int) -> None:
    return


@mutation("suspend_active", "_trials")
def counts_suspended_trials_twice(original: Any, self: Any) -> int:
    original(self)
    return 0


@mutation("_on_resumed")
def forgets_suspended_trials(original: Any, self: Any, event: events.Resumed) -> None:
    self._trials.suspended.clear()
    original(self, event)


@mutation("is_requested", "_suggestions")
def takes_a_late_suggestion(original: Any, self: Any, number: int) -> bool:
    return True


@mutation("_finish_trial")
def forgets_to_tell_the_scheduler_of_an_end(original: Any, self: Any, *args: Any) -> None:
    on_end, self._scheduler.on_end = self._scheduler.on_end, lambda *_: None
    original(self, *args)
    self._scheduler.on_end = on_end


@mutation("_finish_trial")
def counts_the_best_trial_as_no_improvement(original: Any, self: Any, trial: Any, *args: Any) -> None:
    original(self, trial, *args)
    self.counts.num_trials_without_improvement += trial.trial_id == self.counts.best_trial_id


@mutation("_release")
def keeps_a_list_of_released_trials(original: Any, self: Any, trial: Any, now_s: float) -> None:
    original(self, trial, now_s)
    self.__dict__.setdefault("_released", []).append(trial)


@mutation("_release")
def forgets_the_reserved_slot(original: Any, self: Any, trial: Any, now_s: float) -> None:
    trial.reserved_slot = None
    original(self, trial, now_s)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.function.__name__)
def test_machine_catches_a_core_that(mutation: Mutation) -> None:
    machine = type("BrokenMachine", (CoreMachine,), {"mutation": mutation})
    generate_only = settings(
        max_examples=2000,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(machine, settings=generate_only)
