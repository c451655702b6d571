"""Tuning against an obvious model, fact by fact: all orders and the whole state, also what should be forgotten.

The model (`fanwise.testing.tuning_model`) keeps everything for ever and works each answer out again. Broken versions of
Tuning show that the comparison can fail. The same facts, taken through the record's rows, are replayed at the end.
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fanwise.testing.scripted_search import ScriptedScheduler, ScriptedSearcher
from fanwise.testing.tuning_model import CRASHES, SEED, SPACE, SearchSettings, TuningModel
from fanwise.tune.decisions import facts
from fanwise.tune.decisions.facts import Fact, Outcome
from fanwise.tune.decisions.orders import Answer, Finish, Order, Reason, Reject, Suggest
from fanwise.tune.decisions.replay import Row, replay
from fanwise.tune.decisions.tuning import Tuning
from fanwise.tune.record.rows import RowOrders, fact_of, to_row
from fanwise.tune.schedulers import Status
from fanwise.tune.stopping import StoppingCriterion


def searches(**limits: st.SearchStrategy[Any]) -> st.SearchStrategy[SearchSettings]:  # Any: as the settings have them
    never = dict.fromkeys(
        ("equal", "started", "completed", "evaluations", "low", "high", "unimproved", "volume"), st.none()
    )
    return st.builds(
        SearchSettings,
        n_workers=st.sampled_from([2, 3, 1]),
        asynchronous=st.sampled_from([True, True, True, False]),
        timeout_s=st.sampled_from([None, 6.0]),
        grace_s=st.sampled_from([0.0, 2.0]),
        retries=st.integers(0, 2),
        keep=st.sampled_from([False, False, True]),
        clones=st.sampled_from([False, True]),
        mode=st.sampled_from(["min", "max"]),
        maximum=st.sampled_from([None, 2.0]),
        at_once=st.sampled_from([True, False, False]),
        suggest_timeout_s=st.sampled_from([None, 2.0]),
        bound=st.sampled_from([None, None, 2.0, 0.0]),
        **{"wallclock_s": st.just(math.inf), **never, **limits},
    )


# In most searches limits are never or seldom set: else they are over before anything happens.
MAYBE = st.sampled_from([None, None, None, 1, 4, 8])
LIMITED = searches(
    equal=st.sampled_from([None, 2, 3]),
    started=MAYBE,
    completed=MAYBE,
    evaluations=MAYBE,
    unimproved=st.sampled_from([None, None, 1, 2, 3]),
    volume=st.sampled_from([None, 1.0, 9.0]),
    wallclock_s=st.sampled_from([math.inf, math.inf, 20.0, 60.0]),
    low=st.sampled_from([None, None, 0.0]),
    high=st.sampled_from([None, None, 9.0]),
)
SETTINGS = st.one_of(searches(), searches(), searches(equal=st.sampled_from([2, 3])), LIMITED)
# Most reports are good ones with few different values, and most failures are alike: else a search ends before the
# interesting things happen, or equals never meet.
GOOD = st.fixed_dictionaries(
    {"loss": st.sampled_from([1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 0.0, 9.0, math.inf, -math.inf, math.nan])},
    optional={"ask": st.sampled_from(["stop", "pause", "pause", "", "", ""])},
)
# What is bounded, in some searches: kept, violated by a little or by much, and no number.
COSTS = st.sampled_from([0.0, 0.0, 2.0, 3.0, 3.0, 8.0, math.inf, math.nan])
BAD = st.sampled_from(
    [
        {"los": 1.0},
        {"loss": "low"},
        {"loss": 1.0, "ask": "break", "cost": 0.0},
        {"loss": 1.0, "ask": "wrong", "cost": 0.0},
        {"loss": 1.0},
    ]
)
WHOLE = st.builds(lambda values, cost: {**values, "cost": cost}, GOOD, COSTS)
VALUES = st.integers(0, 19).flatmap(lambda drawn: BAD if drawn == 7 else WHOLE)
OUTCOMES = st.builds(
    Outcome,
    kind=st.sampled_from(["returned", "stopped", *CRASHES, "exception", "exception", *["returned"] * 5]),
    text=st.sampled_from(["boom 1", "boom 2\nin detail", "boom 1", "bang"]),
    traceback=st.sampled_from(["", "Traceback"]),
    retry_alone=st.booleans(),
)
PLANS = st.lists(
    st.tuples(
        st.sampled_from(["new", "own", "resume", "resume", "resume", "clone", "clone", "stop", "wait"]),
        st.integers(0, 3),
    ),
    max_size=3,
)
SUGGESTIONS = st.sampled_from(["config", "config", "config", "config", "config", "config", "nothing", "error"])


class TuningMachine(RuleBasedStateMachine):
    """Facts in any order to Tuning and to the model; every answer and the whole state must agree."""

    tuning_class: ClassVar[type[Tuning]] = Tuning
    replays: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.begun = False
        self.num_saved = 0
        self.num_suggested = 0
        self.finishes = 0
        self.questions: list[int] = []
        self.words: list[tuple[str, int]] = []  # planned since the last fact
        self.rows: list[tuple[list[tuple[str, int]], float, str, int | None, str]] = []

    @initialize(given=SETTINGS)
    def begin(self, given: SearchSettings) -> None:
        self.given = given
        self.scheduler, self.searcher, self.tuning = self.fresh()
        self.model = TuningModel(given)
        self.begun = True
        self.hand(facts.Begin(self.now_s))

    def fresh(self) -> tuple[ScriptedScheduler, ScriptedSearcher, Tuning]:
        given = self.given
        searcher = ScriptedSearcher(given.suggest_timeout_s, at_once=given.at_once)
        bounds = [] if given.bound is None else [f"cost <= {given.bound}"]
        scheduler = ScriptedScheduler(given.mode, given.maximum, given.clones, searcher, constraints=bounds)
        tuning = self.tuning_class(
            scheduler,
            SPACE,
            StoppingCriterion(**given.limits()),
            n_workers=given.n_workers,
            seed=SEED,
            asynchronous=given.asynchronous,
            trial_timeout_s=given.timeout_s,
            stop_grace_s=given.grace_s,
            max_equal_failures=given.equal,
            retries=given.retries,
            keep_checkpoints=given.keep,
        )
        return scheduler, searcher, tuning

    def hand(self, fact: Fact, suggests: str = "config") -> list[Order]:
        """The fact to both, and the answer of a searcher that answers at once."""
        orders = self.tuning.handle(fact)
        expected = self.model.handle(fact)
        assert [comparable(order) for order in orders] == [comparable(order) for order in expected]
        kind, trial_id, body = to_row(fact, orders)
        self.rows.append((self.words, fact.now_s, kind, trial_id, json.dumps(body)))
        self.words = []
        for order in orders:
            self.finishes += isinstance(order, Finish)
            if isinstance(order, Finish):
                assert (order.cause is not None) == (order.kind == "scheduler")
            if isinstance(order, Suggest):
                self.questions.append(order.number)
        if self.given.at_once and self.questions and not isinstance(fact, facts.Suggested):
            self.suggested(0, suggests)
        return orders

    def suggested(self, which: int, what: str) -> None:
        """The searcher's answer to one of its questions."""
        number = self.questions.pop(which % len(self.questions))
        config = None
        if what == "config":
            config = {"n": self.num_suggested}
            self.num_suggested += 1
        self.hand(facts.Suggested(self.now_s, number, config, error="oops" if what == "error" else None))
        if self.given.at_once and self.questions:
            self.suggested(0, "config")

    def pick(self, which: int) -> tuple[int, int]:
        """An attempt that holds a slot, if any does."""
        running = self.model.running()
        chosen = running[which % len(running)] if running else None
        return (chosen.trial.number, chosen.number) if chosen is not None else (which, 0)

    def saved(self, saves: bool) -> str | None:
        self.num_saved += saves
        return f"c{self.num_saved}" if saves else None

    def live(self, which: int, values: dict[str, object], saves: int, outcome: Outcome, what: str) -> None:
        """What comes next in the ordinary life of some attempt: reports, the end, and a free slot."""
        running = self.model.running()
        if not running:
            self.hand(facts.Tick(self.now_s))
            return
        attempt = running[which % len(running)]
        at = (attempt.trial.number, attempt.number)
        if attempt.told_at is None and not attempt.ended and saves:
            for saved in (saves & 1, saves & 2, saves & 4):
                self.hand(facts.Reported(self.now_s, *at, values, checkpoint=self.saved(saved > 0)), what)
                if attempt.told_at is not None:
                    return
            return
        if not attempt.ended:
            self.hand(facts.Ended(self.now_s, *at, outcome))
        self.hand(facts.Free(self.now_s, *at), what)

    @rule(which=st.integers(0, 2), values=VALUES, saves=st.integers(0, 7), what=SUGGESTIONS)
    def a_trial_lives(self, which: int, values: dict[str, object], saves: int, what: str) -> None:
        self.live(which, values, saves, Outcome("stopped"), what)

    @rule(which=st.integers(0, 2), values=VALUES, saves=st.integers(0, 7), outcome=OUTCOMES)
    def a_trial_lives_its_own_way(self, which: int, values: dict[str, object], saves: int, outcome: Outcome) -> None:
        self.live(which, values, saves, outcome, "config")

    @rule(which=st.integers(0, 2), saves=st.integers(0, 7), pauses=st.booleans())
    def a_trial_does_well(self, which: int, saves: int, pauses: bool) -> None:
        self.live(which, {"loss": 2.0, "cost": 1.0}, saves, Outcome("stopped"), "config")
        if pauses:
            self.live(which, {"loss": 1.0, "cost": 3.0, "ask": "pause"}, saves, Outcome("stopped"), "config")
            self.live(which, {"loss": 3.0, "cost": 0.0}, saves, Outcome("stopped"), "config")

    @rule(which=st.integers(0, 2), saves=st.booleans(), what=st.sampled_from(["resume", "clone"]))
    def a_trial_goes_on_or_is_cloned_while_it_pauses(self, which: int, saves: bool, what: str) -> None:
        """And another one makes room for it."""
        one, other = self.pick(which), self.pick(which + 1)
        self.plan([(what, one[0])])
        self.hand(
            facts.Reported(self.now_s, *one, {"loss": 2.0, "cost": 3.0, "ask": "pause"}, checkpoint=self.saved(saves))
        )
        if other != one:
            self.hand(facts.Ended(self.now_s, *other, Outcome("stopped")))
            self.hand(facts.Free(self.now_s, *other))

    @rule(which=st.integers(0, 2), values=VALUES, saves=st.booleans())
    def report(self, which: int, values: dict[str, object], saves: bool) -> None:
        orders = self.hand(facts.Reported(self.now_s, *self.pick(which), values, checkpoint=self.saved(saves)))
        assert isinstance(orders[0], Answer | Reject)
        assert sum(isinstance(order, Answer | Reject) for order in orders) == 1

    @rule(which=st.integers(0, 2))
    def ready(self, which: int) -> None:
        self.hand(facts.Ready(self.now_s, *self.pick(which)))

    @rule(which=st.integers(0, 2), outcome=OUTCOMES)
    def ended(self, which: int, outcome: Outcome) -> None:
        self.hand(facts.Ended(self.now_s, *self.pick(which), outcome))

    @rule(which=st.integers(0, 2), what=SUGGESTIONS)
    def free(self, which: int, what: str) -> None:
        self.hand(facts.Free(self.now_s, *self.pick(which)), what)

    @rule(words=PLANS, end=st.sampled_from(["", "", "", "", "", "", "", "done", "wrong"]))
    def the_scheduler_plans(self, words: list[tuple[str, int]], end: str) -> None:
        self.plan([*words, (end, 0)] if end else words)

    def plan(self, words: list[tuple[str, int]]) -> None:
        self.scheduler.plan.extend(words)
        self.model.plan.extend(words)
        self.words += words

    @rule(by_s=st.sampled_from([0.5, 1.0, 2.0, 5.0]), looks=st.booleans())
    def time_passes(self, by_s: float, looks: bool) -> None:
        self.now_s += by_s
        if looks:
            self.hand(facts.Tick(self.now_s))

    @rule()
    def tick_when_it_is_due(self) -> None:
        due_s = self.tuning.next_tick_s
        if due_s is not None:
            self.now_s = max(self.now_s, due_s)
            orders = self.hand(facts.Tick(self.now_s))
            assert orders or self.tuning.next_tick_s != due_s, "a tick that is due does something, or none is due"

    @rule(which=st.integers(0, 2), what=SUGGESTIONS)
    def the_searcher_has_thought(self, which: int, what: str) -> None:
        if self.questions:
            self.suggested(which, what)

    @rule(what=st.sampled_from(["pause", "pause", "resume", "resume", "stop"]), trial_id=st.integers(0, 6))
    def a_person_wants_something(self, what: Any, trial_id: int) -> None:  # Any: one of three words
        self.hand(facts.Command(self.now_s, what, trial_id))

    @rule(what=st.sampled_from(["enqueue", "ask", "workers", "interrupt"]), number=st.integers(1, 4))
    def a_person_changes_the_search(self, what: str, number: int) -> None:
        if what == "enqueue":
            self.hand(facts.Enqueued(self.now_s, {"n": 3000 + number}))
        elif what == "ask":
            if not self.model.wants:  # programs ask again when they have been answered
                self.hand(facts.Asked(self.now_s))
        elif what == "workers":
            self.hand(facts.Workers(self.now_s, number))
        else:
            self.hand(facts.Interrupt(self.now_s))

    @rule(really=st.integers(0, 3).map(lambda drawn: drawn == 2))
    def killed_and_resumed(self, really: bool) -> None:
        if really or self.tuning.is_finished:
            self.questions.clear()
            self.finishes = 0
            self.hand(facts.Resumed(self.now_s))

    @rule(trial=st.integers(-1, 8), number=st.integers(0, 2), fact=st.integers(0, 4), outcome=OUTCOMES)
    def stray_fact(self, trial: int, number: int, fact: int, outcome: Outcome) -> None:
        """Late, doubled, or about a trial that never was."""
        now_s = self.now_s
        if fact == 4:
            if number != self.model.asked:
                self.hand(facts.Suggested(now_s, number, {"n": 99}))
        elif self.model.find(trial, number) is not None:
            return
        elif fact == 0:
            self.hand(facts.Ready(now_s, trial, number))
        elif fact == 1:
            self.hand(facts.Reported(now_s, trial, number, {"loss": 1.0}, checkpoint=self.saved(True)))
        elif fact == 2:
            self.hand(facts.Ended(now_s, trial, number, outcome))
        else:
            self.hand(facts.Free(now_s, trial, number))

    @invariant()
    def the_whole_state_is_the_models(self) -> None:
        if not self.begun:
            return
        known, expected = state_of(self.tuning), state_of_model(self.model)
        for name, value in expected.items():
            assert (name, known[name]) == (name, value)
        assert known.keys() == expected.keys()
        assert self.scheduler.calls == self.model.scheduler_calls
        assert self.searcher.calls == self.model.searcher_calls
        assert vars(self.tuning).keys() == COMPARED | OF_THE_SEARCH

    @invariant()
    def nothing_runs_after_the_one_finish(self) -> None:
        if self.begun:
            assert self.finishes == self.tuning.is_finished
            assert not (self.tuning.is_finished and self.model.running())

    def teardown(self) -> None:
        """The facts from the record lead another Tuning to the same orders and the same state."""
        if not self.begun or not self.replays:
            return
        scheduler, searcher, tuning = self.fresh()

        def rows() -> Iterator[Row]:
            for seq, (words, now_s, kind, trial_id, text) in enumerate(self.rows):
                scheduler.plan.extend(words)
                body = json.loads(text)
                yield seq, fact_of(kind, now_s, trial_id, body), RowOrders(kind, trial_id, body)

        found = replay(tuning, None, rows(), asks_anew=True)
        assert found.differences == []
        assert found.num_facts == len(self.rows)
        assert state_of(tuning) == state_of(self.tuning)
        assert (scheduler.calls, searcher.calls) == (self.scheduler.calls, self.searcher.calls)


def comparable(order: Order) -> object:
    """Asks have no equals, and what the scheduler raised is no part of the decision."""
    if isinstance(order, Suggest):
        ask = order.ask
        return "suggest", order.number, ask.number, ask.trial_id, dict(ask.pending), ask.now_s, ask.suggest_timeout_s
    return Finish(order.reason, order.error, None, order.kind) if isinstance(order, Finish) else order


def state_of_model(model: TuningModel) -> dict[str, object]:
    """What Tuning may know, as the model has it."""
    numbers, watched = model.numbers(), model.given.low is not None or model.given.high is not None
    alive = [trial for trial in model.trials if trial.where != "over" or not trial.last.freed]
    over = [trial for trial in model.trials if trial.where == "over"]
    keeps_all = model.given.keep or model.given.clones
    best_over = model.best_of(over)
    kinds = model.kinds()
    return {
        "trials": {
            trial.number: (
                trial.last.number,
                trial.config,
                trial.where if trial.where != "over" else "runs",
                None if trial.last.freed else (trial.last.slot, phase_of(trial.last)),
                trial.last.told if trial.where != "over" else "",
                None if trial.last.fault is None or trial.last.freed else trial.last.fault,
                None if trial.where != "runs" else trial.from_iter if trial.last.retry else trial.last.iter,
                trial.reached if trial.where != "over" else None,
                None if trial.where == "over" else ranked(model, model.best_of([trial])),
                None
                if trial.where == "over" or not trial.saved
                else (trial.saved[-1].name, trial.saved[-1].iter, ranked(model, trial.saved[-1].best)),
                (trial.hold, trial.wanted, trial.dropped, trial.given_up, trial.counted),
                any(attempt.paused for attempt in trial.attempts),
                trial.last.retry and trial.where == "runs",
                sum(attempt.retry for attempt in trial.attempts),
            )
            for trial in alive
        },
        "again": [trial.number for trial in model.again],
        "suspended": [trial.number for trial in model.suspended],
        "reserved": {trial.number: trial.reserved for trial in model.trials if trial.reserved is not None},
        "has room": bool(model.free_slots()),
        "offered": model.is_offered,
        "pending": {attempt.trial.number: attempt.trial.config for attempt in model.running()},
        "enqueued": model.enqueued,
        "needed": model.needed(),
        "left": {trial.number: trial.saved[-1].name for trial in over if trial.saved} if keeps_all else {},
        "best left": best_over.trial.saved[-1].name
        if best_over is not None and best_over.trial.saved and not keeps_all
        else None,
        "deadlines": {key: at_s for key, (at_s, _) in model.deadlines().items()},
        "stage": model.stage,
        "counts": (
            model.looked_s,
            len(model.trials),
            *(model.count(status) for status in (Status.COMPLETED, Status.STOPPED, Status.FAILED)),
            len(model.reports),
            {"loss": min(numbers)} if numbers and watched else {},
            {"loss": max(numbers)} if numbers and watched else {},
            model.record(),
            None if model.given.volume is None else model.volume(),
        ),
        "failures": (len(model.reasons), len(kinds), {kind: kinds.count(kind) for kind in kinds}),
        "best": model.best(),
        "starts": model.num_taken,
        "suggestions": (model.num_asked, model.asked, model.suggestion, model.wants, model.exhausted),
        "in batch": model.in_batch,
        "nothing left": model.nothing_left,
        "interrupts": model.interrupts,
        "ends": (model.halted or model.closed or "", model.error, model.kind),
        "metric seen": model.metric_seen,
        "begun": model.begun,
        "orders left": [],
    }


def ranked(model: TuningModel, report: Any) -> tuple[float, float, int] | None:  # Any: private to the model
    return None if report is None else (report.beyond, model.loss(report), report.place + 1)


def phase_of(attempt: Any) -> str:  # Any: private to the model
    if attempt.ended:
        return "ended"
    if attempt.killed:
        return "killed"
    return "stopping" if attempt.told_at is not None else "running" if attempt.ready is not None else "starting"


def state_of(tuning: Any) -> dict[str, object]:  # Any: it looks at what is private
    """The same picture of the machine under test."""
    counts, holders = tuning.counts, tuning._holders
    places = {trial.trial_id: "again" for trial in tuning._again}
    places |= dict.fromkeys(tuning._paused, "paused") | dict.fromkeys(tuning._suspended, "suspended")
    places |= dict.fromkeys(tuning._trials, "runs")
    again = {trial.trial_id: trial for trial in tuning._again}
    trials = {**tuning._trials, **tuning._paused, **tuning._suspended, **again}
    assert len(trials) == sum(map(len, (tuning._trials, tuning._paused, tuning._suspended, again)))
    slots = [*tuning._free_slots, *tuning._reserved.values(), *(trial.slot for trial in tuning._trials.values())]
    assert sorted(slots) == list(range(len(slots)))
    return {
        "trials": {
            t: (
                trial.attempt,
                trial.config,
                places[t],
                (trial.slot, trial.phase) if places[t] == "runs" else None,
                "" if trial.is_over else trial.told,
                None if trial.fault is None or places[t] != "runs" else (trial.fault.kind, trial.fault.text),
                trial.iter if places[t] == "runs" and not trial.is_over else None,
                None if trial.is_over else trial.reached,
                trial.best and trial.best[:3],
                trial.checkpoint and (*trial.checkpoint[:2], trial.checkpoint.best and trial.checkpoint.best[:3]),
                (trial.hold, trial.wanted, trial.dropped, trial.given_up, trial.counted),
                trial.has_paused,
                trial.will_retry and places[t] == "runs",
                trial.num_retries,
            )
            for t, trial in trials.items()
        },
        "again": [trial.trial_id for trial in tuning._again],
        "suspended": list(tuning._suspended),
        "reserved": tuning._reserved,
        "has room": tuning._has_room,
        "offered": tuning._is_offered,
        "pending": tuning._pending,
        "enqueued": list(tuning._enqueued),
        "needed": holders._counts,
        "left": {t: checkpoint.name for t, checkpoint in tuning._left.items()},
        "best left": None if tuning._best_left is None else tuning._best_left.name,
        "deadlines": {key: at_s for key, (at_s, _) in tuning._deadlines._times.items()},
        "stage": tuning._stage,
        "counts": (
            counts.wallclock_s,
            counts.num_trials_started,
            counts.num_trials_completed,
            counts.num_trials_stopped,
            counts.num_trials_failed,
            counts.num_evaluations,
            counts.smallest,
            counts.largest,
            (counts.best_rank, counts.best_trial_id, counts.num_trials_without_improvement),
            None if counts.hypervolume_front is None else counts.hypervolume_front.volume,
        ),
        "failures": (tuning._failures._num_known, tuning._failures._failed, dict(tuning._failures._reasons)),
        "best": tuning.best,
        "starts": tuning._num_starts,
        "suggestions": (
            tuning._num_suggestions,
            tuning._asked,
            tuning._suggestion,
            tuning._new_wanted,
            tuning._exhausted,
        ),
        "in batch": tuning._in_batch,
        "nothing left": tuning._nothing_left,
        "interrupts": tuning._interrupts,
        "ends": (tuning._reason, tuning._error, tuning._kind),
        "metric seen": tuning._metric_seen,
        "begun": tuning._started_s is not None,
        "orders left": tuning._orders,
    }


# What Tuning may keep: a new attribute must be compared above, or named among what belongs to the search.
COMPARED = {
    "_trials",
    "_paused",
    "_suspended",
    "_again",
    "_reserved",
    "_enqueued",
    "_pending",
    "_free_slots",
    "_orders",
}
COMPARED |= {"_holders", "_left", "_best_left", "_best", "_deadlines", "_stage", "_started_s", "_interrupts", "_counts"}
COMPARED |= {"_num_starts", "_num_suggestions", "_asked", "_suggestion", "_new_wanted", "_exhausted", "_in_batch"}
COMPARED |= {"_metric_seen", "_reason", "_error", "_kind", "_cause", "_failures", "_n_workers", "_is_offered"}
COMPARED |= {"_nothing_left"}
OF_THE_SEARCH = {"_scheduler", "_space", "_criterion", "_seed", "_asynchronous", "_timeout_s", "_grace_s", "_retries"}
OF_THE_SEARCH |= {"_keep_checkpoints", "_objectives", "_metric", "_signs", "_listener", "_suggest_timeout_s"}
OF_THE_SEARCH |= {"_at_once", "_handlers", "_resource_attr", "_constraints"}


@pytest.mark.parametrize("max_examples", [50, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_tuning_does_what_its_model_says(max_examples: int) -> None:
    run_state_machine_as_test(
        TuningMachine, settings=settings(max_examples=max_examples, stateful_step_count=40, deadline=None)
    )


# Broken versions, each with one method replaced. Any: they reach into what is private.


def starts_before_the_slot_is_free(self: Any, trial: Any, outcome: Outcome, now_s: float) -> None:
    Tuning._end(self, trial, outcome, now_s)
    if not trial.will_retry:
        Tuning._release(self, trial, now_s)
        Tuning._fill(self, now_s)


def takes_late_facts_for_current_ones(self: Any, trial_id: int, attempt: int) -> Any:
    return self._trials.get(trial_id)


def retries_whatever_failed(self: Any, trial: Any, reason: Reason, outcome: Outcome) -> bool:
    return bool(trial.num_retries < self._retries and not trial.was_told)


def counts_trials_that_have_paused_among_those_that_only_failed(self: Any, trial: Any, *more: Any) -> None:
    trial.has_paused = False
    Tuning._count_failure(self, trial, *more)


def retries_for_ever(self: Any, trial: Any, reason: Reason, outcome: Outcome) -> bool:
    return reason.kind in CRASHES and not trial.was_told


def forgets_the_grace(self: Any, trial: Any, now_s: float) -> None:
    Tuning._tell_to_stop(self, trial, now_s)
    self._deadlines.clear(trial.trial_id)


def leaves_running_trials_alone(self: Any, reason: str, now_s: float) -> None:
    self._stop_starting(reason)


def keeps_the_last_of_equals(self: Any, trial: Any, beyond: float, loss: float, values: Any) -> None:
    Tuning._keep_best(self, trial, beyond, loss, values)
    if trial.best is not None:
        trial.best = trial.best._replace(number=-abs(trial.best.number))


def takes_what_violates_a_bound_for_the_best(self: Any, trial: Any, beyond: float, loss: float, values: Any) -> None:
    Tuning._keep_best(self, trial, 0.0, loss, values)


def forgets_to_rewind_the_scheduler(self: Any, trial: Any, now_s: float) -> None:
    on_rollback, self._scheduler.on_rollback = self._scheduler.on_rollback, lambda *_: None
    Tuning._rewind(self, trial, now_s)
    self._scheduler.on_rollback = on_rollback


def forgets_to_rewind_the_searcher(self: Any, trial: Any, now_s: float) -> None:
    on_rollback, self._listener.on_rollback = self._listener.on_rollback, lambda *_: None
    Tuning._rewind(self, trial, now_s)
    self._listener.on_rollback = on_rollback


def keeps_the_best_of_a_void_attempt(self: Any, trial: Any, now_s: float) -> None:
    best = trial.best
    Tuning._rewind(self, trial, now_s)
    trial.best = best


def tells_repeated_reports_again(self: Any, fact: facts.Reported) -> None:
    trial = self._find(fact.trial_id, fact.attempt)
    if trial is not None and trial.iter < trial.reached:
        trial.reached = trial.iter
    Tuning._on_reported(self, fact)


def starts_a_paused_trial_before_its_slot_is_free(self: Any, trial_id: int) -> None:
    if trial_id not in self._paused:
        trial = self._trials.pop(trial_id)
        trial.begin_again()
        self._take_slot(trial)
    else:
        Tuning._resume(self, trial_id)


def discards_a_checkpoint_that_a_clone_needs(self: Any, checkpoint: Any, trial_id: int) -> None:
    if checkpoint is not None:
        self._holders._counts[checkpoint.name] = 1
    Tuning._drop(self, checkpoint, trial_id)


def never_discards(self: Any, checkpoint: Any, trial_id: int) -> None:
    return


def starts_from_scratch_in_spite_of_a_checkpoint(self: Any, trial: Any, **more: Any) -> None:
    if trial.attempt:
        trial.iter = 0
    Tuning._start(self, trial, **more)


def counts_suspended_trials_twice(self: Any, fact: facts.Resumed) -> None:
    for trial in self._suspended.values():
        trial.counted = False
    Tuning._on_resumed(self, fact)


def forgets_who_was_suspended(self: Any, fact: facts.Resumed) -> None:
    self._suspended.clear()
    Tuning._on_resumed(self, fact)


def puts_the_fallback_off(self: Any, now_s: float) -> bool:
    started = Tuning._start_suggested(self, now_s)
    if self._new_wanted and self._suggest_timeout_s is not None:
        self._deadlines.set(-2, now_s + self._suggest_timeout_s)
    return started


def takes_a_late_suggestion(self: Any, fact: facts.Suggested) -> None:
    self._asked = fact.number
    Tuning._on_suggested(self, fact)


def lets_nobody_hold_a_trial(self: Any, fact: facts.Command) -> None:
    if fact.what != "pause":
        Tuning._on_command(self, fact)


def forgets_to_say_that_a_trial_is_over(self: Any, trial: Any, status: Status, now_s: float) -> None:
    on_end, self._scheduler.on_end = self._scheduler.on_end, lambda *_: None
    Tuning._over(self, trial, status, now_s)
    self._scheduler.on_end = on_end


def counts_the_best_trial_among_those_that_did_not_improve(self: Any, trial: Any, status: Status, now_s: float) -> None:
    Tuning._over(self, trial, status, now_s)
    self._counts.num_trials_without_improvement += trial.trial_id == self._counts.best_trial_id


def keeps_a_list_of_finished_trials(self: Any, trial: Any, now_s: float) -> None:
    Tuning._release(self, trial, now_s)
    self.__dict__.setdefault("_finished", []).append(trial)


def gives_the_waiting_slot_away(self: Any, trial: Any, now_s: float) -> None:
    self._reserved.pop(trial.trial_id, None)
    Tuning._release(self, trial, now_s)


def leaves_paused_trials_behind_when_no_more_may_start(self: Any, now_s: float) -> bool:
    return self._stage == "open" and Tuning._start_next(self, now_s)


def clones_when_no_more_may_start(self: Any, now_s: float) -> Any:
    stage = self._stage
    self._stage = "open"
    answer = Tuning._consult_about_next(self, now_s)
    self._stage = stage if self._stage == "open" else self._stage
    return answer


def grows_a_full_batch(self: Any, fact: facts.Workers) -> None:
    in_batch = self._in_batch
    Tuning._on_workers(self, fact)
    self._in_batch = in_batch
    self._fill(fact.now_s)


MUTANTS: dict[Callable[..., Any], str] = {  # Any: each has the signature of what it replaces
    starts_before_the_slot_is_free: "_end",
    takes_late_facts_for_current_ones: "_find",
    retries_whatever_failed: "_may_retry",
    retries_for_ever: "_may_retry",
    counts_trials_that_have_paused_among_those_that_only_failed: "_count_failure",
    forgets_the_grace: "_tell_to_stop",
    leaves_running_trials_alone: "_halt",
    keeps_the_last_of_equals: "_keep_best",
    takes_what_violates_a_bound_for_the_best: "_keep_best",
    forgets_to_rewind_the_scheduler: "_rewind",
    forgets_to_rewind_the_searcher: "_rewind",
    keeps_the_best_of_a_void_attempt: "_rewind",
    tells_repeated_reports_again: "_on_reported",
    starts_a_paused_trial_before_its_slot_is_free: "_resume",
    discards_a_checkpoint_that_a_clone_needs: "_drop",
    never_discards: "_drop",
    starts_from_scratch_in_spite_of_a_checkpoint: "_start",
    counts_suspended_trials_twice: "_on_resumed",
    forgets_who_was_suspended: "_on_resumed",
    puts_the_fallback_off: "_start_suggested",
    takes_a_late_suggestion: "_on_suggested",
    lets_nobody_hold_a_trial: "_on_command",
    forgets_to_say_that_a_trial_is_over: "_over",
    counts_the_best_trial_among_those_that_did_not_improve: "_over",
    keeps_a_list_of_finished_trials: "_release",
    gives_the_waiting_slot_away: "_release",
    leaves_paused_trials_behind_when_no_more_may_start: "_start_next",
    clones_when_no_more_may_start: "_consult_about_next",
    grows_a_full_batch: "_on_workers",
}

# The machine comes upon these after hundreds of searches only: seconds each.
FOUND_LATE = (
    takes_late_facts_for_current_ones,
    keeps_the_best_of_a_void_attempt,
    tells_repeated_reports_again,
    puts_the_fallback_off,
    gives_the_waiting_slot_away,
    leaves_paused_trials_behind_when_no_more_may_start,
    clones_when_no_more_may_start,
)


@pytest.mark.parametrize(
    "broken",
    [pytest.param(each, marks=pytest.mark.soak) if each in FOUND_LATE else each for each in MUTANTS],
    ids=lambda broken: str(broken.__name__),
)
def test_the_machine_catches_a_tuning_that(broken: Callable[..., Any]) -> None:  # Any: as above
    tuning_class = type("Broken", (Tuning,), {MUTANTS[broken]: broken})
    machine = type("BrokenMachine", (TuningMachine,), {"tuning_class": tuning_class, "replays": False})
    quickly = settings(
        max_examples=2000,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(machine, settings=quickly)
