"""State machine of a search: assigns trials to slots, stops and pauses trials, and ends the search.

    handle(fact)  ->  orders, to be executed in this order

    New, Clone --> running --ended--> Completed, Stopped or Failed          (final; the trial is dropped)
                    |   ^---crashed, with retries---'
                    |-- PAUSE --> paused --Resume--> running                from its last checkpoint
                    '-- the search ends --> suspended --Resumed--> running  from its last checkpoint

The module handles plain values only; it does not access processes, links, the record or the screen. The scheduler
decides about trials and the searcher about configurations; only valid reports reach them, and their answers are
validated here. Late facts, duplicates, and facts about unknown trials change nothing and never raise. The state machine
is deterministic, so replay and resume feed it the recorded facts.

Invariants: a slot is busy from Start until Free. Every Reported gets exactly one Answer or Reject, the first of its
orders. StopStarting and then Finish are each ordered once until Resumed, Finish only when no slot is busy. A finished
trial leaves counters and, if it is the best, its configuration and checkpoint.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, final

from ..constraints import Constraint, constraints_of, infeasibility, violations_of
from ..rng import KeyedRandom
from ..schedulers.base import (
    CONTINUE,
    PAUSE,
    STOP,
    Clone,
    Decision,
    Done,
    New,
    NextTrial,
    Resume,
    Scheduler,
    Status,
    Stop,
    Wait,
)
from ..searchers.base import Observation, SuggestContext
from ..space import Space
from ..stopping import Counts, StoppingCriterion, Verdict
from ..values import checked_int, checked_seconds, is_number, round_resource
from . import facts
from .checking import Refused, checked_answer, checked_config, checked_decision, problem_with
from .checkpoints import CheckpointHolders
from .deadlines import Deadlines
from .facts import Fact, Outcome
from .failures import Failures
from .orders import (
    Answer,
    Best,
    Discard,
    Finish,
    FinishKind,
    Judged,
    Kill,
    Order,
    Reason,
    Reject,
    Start,
    StopStarting,
    Suggest,
    Terminate,
)
from .stages import Stage
from .transfer import Learning, observations
from .trials import Checkpoint, Ranked, Trial

_PAUSED: Final = Status.PAUSED
_COMPLETED: Final = Status.COMPLETED
_STOPPED: Final = Status.STOPPED
_FAILED: Final = Status.FAILED
# A crash may be transient. A timeout, a NaN or a missing report is caused by the configuration or the program.
_RETRIED = ("exception", "exit", "signal", "out-of-memory", "gpu-fault", "lost")
# Outcomes that count as a stop after a request to stop: TrialStopped, our signal, or a return in the meantime.
_OBEYED = ("stopped", "signal", "exit", "gpu-fault", "lost", "returned")
_WAIT: Final = Wait()
# Keys of the deadlines that belong to the search. All other keys are trial ids.
_SEARCH_ENDS = -1
_SUGGESTION_DUE = -2


class Listener(Protocol):
    """The methods of a searcher that receive results. Suggestions are requested by the order `Suggest` instead."""

    def observe(self, observation: Observation) -> None: ...
    def on_rollback(self, trial_id: int, to_iter: int) -> None: ...
    def on_end(self, trial_id: int, status: str) -> None: ...


@final
class Tuning:
    """The state machine of one search. Pass it facts, first any `Earlier` and then `Begin`, and execute its orders.

    Args:
        scheduler: decides about trials. Its `begin` has been called. Its exceptions end the search.
        space: the search space.
        criterion: the stopping criterion.
        n_workers: number of slots. With 0, a trial starts only after a fact `Asked`.
        searcher: receives reports, rollbacks and ends. None: the scheduler's searcher. If the searcher runs in
            another thread, pass a proxy that forwards the calls.
        constraints: constraints on every report. None: the scheduler's.
        seed: random seed of the search, for the scheduler and the searcher.
        asynchronous: False: start the next batch only when every slot of the last one is free.
        trial_timeout_s: seconds from Ready until the attempt is terminated. None: no limit.
        stop_grace_s: seconds from the request to stop until Kill.
        max_equal_failures: fail the search if this many trials finish first and all fail alike. None: never.
        retries: number of further attempts of a trial that crashed.
        keep_checkpoints: keep the checkpoints of finished trials.

    Raises:
        TypeError, ValueError: a setting of the wrong type or size.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        space: Space,
        criterion: StoppingCriterion,
        *,
        n_workers: int,
        searcher: Listener | None = None,
        constraints: Sequence[Constraint] | None = None,
        seed: int = 0,
        asynchronous: bool = True,
        trial_timeout_s: float | None = None,
        stop_grace_s: float = 5.0,
        max_equal_failures: int | None = 3,
        retries: int = 0,
        keep_checkpoints: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._space = space
        self._criterion = criterion
        self._seed = seed
        self._asynchronous = asynchronous
        self._timeout_s = None if trial_timeout_s is None else checked_seconds("trial_timeout_s", trial_timeout_s)
        if self._timeout_s == 0.0:
            raise ValueError("trial_timeout_s must be above 0; None lets a trial take as long as it likes")
        self._grace_s = checked_seconds("stop_grace_s", stop_grace_s)
        if max_equal_failures is not None:
            checked_int("max_equal_failures", max_equal_failures, 1)
        self._retries = checked_int("retries", retries, 0)
        self._keep_checkpoints = keep_checkpoints
        self._objectives = scheduler.objectives
        self._constraints = constraints_of(scheduler) if constraints is None else tuple(constraints)
        self._resource_attr = scheduler.resource_attr
        self._metric = self._objectives[0].metric
        self._signs = [(objective.metric, 1.0 if objective.mode == "min" else -1.0) for objective in self._objectives]
        self._listener: Listener | None = scheduler.searcher if searcher is None else searcher
        self._at_once = scheduler.searcher.runs_inline
        self._suggest_timeout_s = None if self._at_once else scheduler.searcher.suggest_timeout_s
        self._counts = Counts(self._metric, criterion.watched(self._metric))
        self._counts.keep_front(criterion.reference_losses(self._objectives))
        self._failures = Failures(max_equal_failures)
        self._n_workers = checked_int("n_workers", n_workers, 0)
        self._free_slots: list[int] = []  # a heap; free and used slots are 0, 1, 2, ... without gaps
        self._is_offered = False  # one trial more than n_workers may start
        self._trials: dict[int, Trial] = {}
        self._pending: dict[int, Mapping[str, object]] = {}
        self._paused: dict[int, Trial] = {}
        self._suspended: dict[int, Trial] = {}
        self._again: deque[Trial] = deque()  # trials without a slot that run next
        self._reserved: dict[int, int] = {}  # trial that is being paused -> the slot to resume it in
        self._enqueued: deque[Mapping[str, object]] = deque()
        self._holders = CheckpointHolders()
        self._left: dict[int, Checkpoint] = {}  # by finished trial, if these are kept
        self._best_left: Checkpoint | None = None
        self._deadlines: Deadlines[int] = Deadlines()
        self._stage: Stage = "open"
        self._started_s: float | None = None
        self._interrupts = 0
        self._num_starts = 0
        self._num_suggestions = 0
        self._asked: int | None = None  # number of the pending suggestion
        self._suggestion: Mapping[str, object] | None = None  # computed in advance
        self._new_wanted = False  # a slot waits for a suggestion
        self._exhausted = False
        self._nothing_left = False  # the scheduler will resume no more paused trials
        self._in_batch = False  # the free slots belong to the batch being filled
        self._metric_seen = False
        self._best: Ranked | None = None  # of the finished trials
        self._reason = ""
        self._error: str | None = None
        self._cause: Exception | None = None
        self._kind: FinishKind = "limit"
        self._orders: list[Order] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            facts.Earlier: self._on_earlier,
            facts.Begin: self._on_begin,
            facts.Suggested: self._on_suggested,
            facts.Ready: self._on_ready,
            facts.Reported: self._on_reported,
            facts.Ended: self._on_ended,
            facts.Free: self._on_free,
            facts.Tick: self._on_tick,
            facts.Interrupt: self._on_interrupt,
            facts.Command: self._on_command,
            facts.Enqueued: self._on_enqueued,
            facts.Workers: self._on_workers,
            facts.Asked: self._on_asked,
            facts.Resumed: self._on_resumed,
        }

    def handle(self, fact: Fact) -> list[Order]:
        """Apply the fact and return the resulting orders."""
        self._handlers[type(fact)](fact)
        if type(fact) is not facts.Reported:
            self._keep_limits(fact.now_s)
        if self._trials or self._stage in ("open", "finished") or self._waits_for_people():
            orders, self._orders = self._orders, []
            return orders
        return self._finish()

    def listen(self, searcher: Listener | None) -> None:
        """Replace the listener, for example when a replay is over and the searcher moves to its own thread."""
        self._listener = searcher

    # State.
    @property
    def best(self) -> Best | None:
        """The best finite report of the first objective so far, the earliest on ties. Void reports do not count.

        Feasible reports rank before infeasible ones, which rank by infeasibility.
        """
        ranked = [trial.best for trial in self._living() if trial.best is not None]
        if self._best is not None:
            ranked.append(self._best)
        return min(ranked).report if ranked else None

    @property
    def counts(self) -> Counts:
        """Counters of started, reported and finished trials. Read only."""
        return self._counts

    @property
    def is_finished(self) -> bool:
        """True once Finish has been ordered."""
        return self._stage == "finished"

    @property
    def next_tick_s(self) -> float | None:
        """Time in seconds when the next Tick is due. None: no deadline is pending."""
        return self._deadlines.next_s

    @property
    def checkpoints(self) -> frozenset[str]:
        """Names of all checkpoints that may still be needed."""
        return self._holders.names

    def _living(self) -> list[Trial]:
        """Return all unfinished trials, each once."""
        trials = {**self._trials, **self._paused, **self._suspended}
        trials.update((trial.trial_id, trial) for trial in self._again)
        return list(trials.values())

    # Facts.

    def _on_earlier(self, fact: facts.Earlier) -> None:
        if self._listener is None:
            return
        learning = Learning(self._space, self._objectives, self._constraints, self._resource_attr)
        try:
            for observation in observations(fact, learning):
                self._listener.observe(observation)
            self._listener.on_end(fact.trial_id, fact.status)
        except Exception as error:  # user code: any exception ends the search in order
            self._scheduler_failed(error, fact.now_s)

    def _on_begin(self, fact: facts.Begin) -> None:
        assert self._started_s is None, "a search begins once"
        self._started_s = 0.0
        if self._stage == "finished":
            return  # interrupted before it began
        self._set_search_deadline()
        self._ask_ahead(fact.now_s)
        self._fill(fact.now_s)

    def _on_suggested(self, fact: facts.Suggested) -> None:
        if fact.number != self._asked:
            return  # late: the trial has started with a random configuration instead
        self._asked = None
        self._deadlines.clear(_SUGGESTION_DUE)
        if fact.error is not None:
            self._fail_search("searcher", "the searcher failed", fact.error, fact.now_s)
        elif fact.config is None:
            self._exhausted = True
            self._new_wanted = False
        else:
            try:
                self._suggestion = checked_config(fact.config, self._space, self._searcher_name(), self._next_id)
            except Refused as error:
                self._fail_search("searcher", "the searcher failed", str(error), fact.now_s, cause=error.cause)
        self._fill(fact.now_s)
        if not self._new_wanted:
            self._withdraw()

    def _on_ready(self, fact: facts.Ready) -> None:
        trial = self._find(fact.trial_id, fact.attempt)
        if trial is not None and trial.phase == "starting":
            trial.phase = "running"
            if self._timeout_s is not None:
                self._deadlines.set(trial.trial_id, fact.now_s + self._timeout_s)

    def _on_reported(self, fact: facts.Reported) -> None:
        trial, now_s = self._trials.get(fact.trial_id), fact.now_s
        if trial is None or trial.attempt != fact.attempt or trial.phase not in ("starting", "running"):
            self._orders.append(Answer(fact.trial_id, STOP, 0, late=True))
            if fact.checkpoint is not None:
                self._orders.append(Discard(fact.trial_id, fact.checkpoint))
            return
        problem = problem_with(fact.values, self._objectives, self._resource_attr, self._constraints)
        if problem is not None:
            self._orders.append(Reject(trial.trial_id, problem))
            if fact.checkpoint is not None:
                self._orders.append(Discard(fact.trial_id, fact.checkpoint))
            self._refused(trial, fact.values, problem, now_s)
            return
        self._metric_seen = True
        trial.iter += 1
        if trial.iter <= trial.reached:
            self._orders.append(Answer(trial.trial_id, CONTINUE, trial.iter, repeated=True))
            if fact.checkpoint is not None:
                self._keep_checkpoint(trial, fact.checkpoint)
            return
        trial.reached = trial.iter
        at = len(self._orders)
        decision = self._decide(trial, fact)
        if fact.checkpoint is not None:
            self._keep_checkpoint(trial, fact.checkpoint)
        verdict = self._verdict(now_s)
        if verdict is not None and not verdict.lets_running_finish and decision is CONTINUE:
            decision = STOP
            trial.told = "suspend"
            self._tell_to_stop(trial, now_s)
        self._orders.insert(at, Answer(trial.trial_id, decision, trial.iter))
        self._exhausted = False
        if verdict is not None:
            self._obey(verdict, now_s)
        if self._has_room:
            self._fill(now_s)

    def _on_ended(self, fact: facts.Ended) -> None:
        trial = self._find(fact.trial_id, fact.attempt)
        if trial is not None and trial.phase != "ended":
            self._end(trial, fact.outcome, fact.now_s)

    def _on_free(self, fact: facts.Free) -> None:
        trial, now_s = self._find(fact.trial_id, fact.attempt), fact.now_s
        if trial is None:
            return
        if trial.phase != "ended":
            self._end(trial, Outcome("lost", "the worker was gone before it said how the trial ended"), now_s)
        self._keep_limits(now_s)
        may_retry = self._stage != "stopping" and self._num_busy <= self._n_workers
        if trial.will_retry and may_retry and not trial.given_up:
            trial.begin_again()
            self._start(trial)
            return
        self._release(trial, now_s)
        self._exhausted = False
        self._fill(now_s)

    def _on_tick(self, fact: facts.Tick) -> None:
        now_s = fact.now_s
        due = self._deadlines.due(now_s)
        for key in due:
            trial = self._trials.get(key)
            if trial is None:
                continue  # a deadline of the search: `_keep_limits` checks the criterion
            if trial.phase == "running":
                trial.fault = Reason(
                    "time-out", f"still running {self._timeout_s:g} s after it began (trial_timeout_s)"
                )
                self._terminate(trial, trial.fault.text, now_s)
            elif trial.phase == "stopping":
                self._kill(trial, f"still running {self._grace_s:g} s after it was told to stop (stop_grace_s)")
        if _SUGGESTION_DUE in due:
            self._keep_limits(now_s)
            self._fall_back(now_s)

    def _on_interrupt(self, fact: facts.Interrupt) -> None:
        self._interrupts += 1
        self._halt(fact.who, fact.now_s)
        if self._interrupts > 1:
            for trial in self._trials.values():
                if trial.phase not in ("killed", "ended"):
                    self._kill(trial, "interrupted twice")

    def _on_command(self, fact: facts.Command) -> None:
        trial = self._not_over(fact.trial_id)
        if trial is None:
            return
        if fact.what == "stop":
            self._stop_by_hand(trial, fact.now_s)
            return
        trial.hold = fact.what == "pause"
        if trial.hold and trial in self._again:
            self._again.remove(trial)
            trial.phase, trial.wanted = "paused", True
            self._paused[trial.trial_id] = trial
        elif not trial.hold and trial.wanted and trial.trial_id in self._paused:
            self._again.append(self._paused.pop(trial.trial_id))
            self._fill(fact.now_s)

    def _stop_by_hand(self, trial: Trial, now_s: float) -> None:
        if trial.trial_id not in self._trials:
            self._paused.pop(trial.trial_id, None)
            if trial in self._again:
                self._again.remove(trial)
            self._over_paused(trial, now_s)
        elif trial.phase in ("starting", "running"):
            trial.told = "stop"
            self._terminate(trial, "stopped by hand", now_s)
        elif trial.told == "pause" or trial.will_retry:
            trial.given_up = True

    def _on_enqueued(self, fact: facts.Enqueued) -> None:
        if self._stage == "open":
            self._enqueued.append(fact.config)
            self._exhausted = False
            self._fill(fact.now_s)

    def _on_asked(self, fact: facts.Asked) -> None:
        self._is_offered = True
        self._fill(fact.now_s)
        if not self._new_wanted:
            self._withdraw()

    def _withdraw(self) -> None:
        """Withdraw an offer to run one trial that was not used."""
        self._is_offered = False

    def _on_workers(self, fact: facts.Workers) -> None:
        """Change the number of slots. No trial starts while more are busy, and a full batch does not grow."""
        self._in_batch = self._in_batch and self._has_room
        self._n_workers = fact.n_workers
        self._fill(fact.now_s)

    def _on_resumed(self, fact: facts.Resumed) -> None:
        """Restart the interrupted trials from their last checkpoints, before all others, in the order of their ids.

        A trial that had been asked to stop or pause is judged as if it had done so.
        """
        now_s = fact.now_s
        self._stage, self._interrupts = "open", 0
        self._reason, self._error, self._cause, self._kind = "", None, None, "limit"
        self._started_s = 0.0
        if fact.stop is not None:
            self._set_criterion(fact.stop)
        if fact.n_workers is not None:
            self._n_workers = fact.n_workers
        interrupted = list(self._trials.values())
        judged = [t for t in interrupted if t.was_told and (t.told in ("stop", "pause") or t.fault)]
        for trial in interrupted:
            if trial.phase != "ended" and trial not in judged:
                trial.phase, trial.told = "ended", "suspend"
        for trial in judged:
            self._end(trial, Outcome("lost", "its tuner was gone before it said how the trial ended"), now_s)
        for trial in interrupted:
            self._release(trial, now_s)
        for trial in self._suspended.values():
            if trial.counted:
                trial.counted = False
                self._counts.num_trials_stopped -= 1
            self._rewind(trial, now_s)
        waiting = {trial.trial_id: trial for trial in [*self._again, *self._suspended.values()]}
        self._again = deque(waiting[trial_id] for trial_id in sorted(waiting))
        self._suspended.clear()
        self._reserved.clear()
        self._deadlines = Deadlines()
        self._free_slots = []
        self._asked = None
        self._new_wanted = self._exhausted = self._nothing_left = False
        self._set_search_deadline()
        self._keep_limits(now_s)
        self._ask_ahead(now_s)
        self._fill(now_s)

    def _not_over(self, trial_id: int) -> Trial | None:
        """Return the trial if it is running, paused, or waiting for a slot. A finished trial may still hold a slot."""
        trial = self._trials.get(trial_id) or self._paused.get(trial_id)
        if trial is None:
            return next((trial for trial in self._again if trial.trial_id == trial_id), None)
        return None if trial.is_over else trial

    def _find(self, trial_id: int, attempt: int) -> Trial | None:
        """Return the trial if this attempt of it holds a slot; otherwise the fact is late."""
        trial = self._trials.get(trial_id)
        return trial if trial is not None and trial.attempt == attempt else None

    # Starting trials.
    @property
    def _next_id(self) -> int:
        return self._counts.num_trials_started

    def _fill(self, now_s: float) -> None:
        """Start trials in the free slots. A batch is filled from when no trial runs until its first slot is freed."""
        self._in_batch = self._in_batch or not self._trials
        if not self._asynchronous and not self._in_batch:
            return
        while True:
            self._keep_limits(now_s)
            if not self._has_room or self._stage not in ("open", "draining") or self._started_s is None:
                return
            if self._again:  # already started once, so limits on new trials do not apply
                trial = self._again.popleft()
                trial.begin_again()
                self._take_slot(trial)
            elif not self._start_next(now_s):
                return

    def _start_next(self, now_s: float) -> bool:
        """Execute the scheduler's next answer. Return False if nothing can run before another fact arrives."""
        if self._stage == "draining" and (self._nothing_left or not self._paused):
            return False
        if self._new_wanted and self._stage == "open":
            return self._start_suggested(now_s)
        answer = self._consult_about_next(now_s)
        if isinstance(answer, New) and answer.config is None:
            return self._start_suggested(now_s)
        if isinstance(answer, New):
            assert answer.config is not None
            self._start_new(answer.config)
            return True
        if isinstance(answer, Clone):
            self._start_new(answer.config, source=answer.trial_id)
            return True
        if isinstance(answer, Resume):
            self._resume(answer.trial_id)
            return True
        if isinstance(answer, Stop):
            self._drop_paused(answer.trial_id, now_s)
            return True
        if isinstance(answer, Done):
            self._nothing_left = True
            self._stop_starting("the scheduler has no more trials")
        elif answer is not None and not self._trials and not self._is_held():
            if self._stage == "draining":
                self._nothing_left = True
            elif self._asked is None:
                why = "searcher exhausted" if self._exhausted else "the scheduler has nothing left to run"
                self._stop_starting(why)
        return False

    def _is_held(self) -> bool:
        """Return True if a trial that could resume is held by a user; the search then waits for the user."""
        return any(trial.hold and trial.wanted for trial in self._paused.values())

    def _waits_for_people(self) -> bool:
        """Return True if the search is draining but a user may still release a held trial or ask for a paused one."""
        if self._stage != "draining":
            return False
        may_be_asked = self._n_workers == 0 and bool(self._paused) and not self._nothing_left
        return bool(self._again) or may_be_asked or self._is_held()

    def _start_suggested(self, now_s: float) -> bool:
        """Start a trial with an enqueued configuration or the one suggested in advance, or else request one.

        Return False if the suggestion is still pending.
        """
        if self._enqueued:
            self._new_wanted = False
            self._start_new(self._enqueued.popleft())
            return True
        config, self._suggestion = self._suggestion, None
        if config is not None:
            self._new_wanted = False
            self._start_new(config)
            self._ask_ahead(now_s)
            return True
        if self._suggest_timeout_s is not None and not self._new_wanted:
            self._deadlines.set(_SUGGESTION_DUE, now_s + self._suggest_timeout_s)
        self._new_wanted = True
        self._ask_searcher(now_s)
        return False

    def _ask_searcher(self, now_s: float) -> None:
        if self._asked is not None:
            return
        self._asked = self._num_suggestions
        self._num_suggestions += 1
        ask = SuggestContext(
            self._asked,
            self._next_id,
            self._space,
            seed=self._seed,
            purpose="suggest",
            # A searcher in its own thread gets a copy, because trials start and end while it reads.
            pending=MappingProxyType(self._pending) if self._at_once else dict(self._pending),
            now_s=now_s,
            suggest_timeout_s=self._suggest_timeout_s,
        )
        self._orders.append(Suggest(self._asked, ask))

    def _ask_ahead(self, now_s: float) -> None:
        """Request a suggestion before a worker is free, if the searcher has a time budget."""
        if self._suggest_timeout_s is not None and self._stage == "open" and self._suggestion is None:
            self._ask_searcher(now_s)

    def _fall_back(self, now_s: float) -> None:
        """Start a trial with a random configuration because the searcher exceeded its budget and a worker waits."""
        if self._asked is None or not self._new_wanted or self._stage != "open":
            return
        number, self._asked = self._asked, None
        self._new_wanted = False
        if self._has_room:
            self._start_new(self._space.sample(KeyedRandom(f"{self._seed}/fallback/{number}")), fallback=True)
            self._keep_limits(now_s)
        self._ask_ahead(now_s)
        self._fill(now_s)

    def _start_new(self, config: Mapping[str, object], *, source: int | None = None, fallback: bool = False) -> None:
        trial = Trial(self._next_id, config)
        self._counts.num_trials_started += 1
        checkpoint = None if source is None else self._checkpoint_of(source)
        if checkpoint is not None:
            self._holders.hold(checkpoint.name)
            trial.checkpoint = Checkpoint(checkpoint.name, checkpoint.iter, None)
            trial.iter = trial.reached = checkpoint.iter
        self._take_slot(trial, source=source, fallback=fallback)

    def _checkpoint_of(self, trial_id: int) -> Checkpoint | None:
        trial = self._not_over(trial_id)
        return self._left.get(trial_id) if trial is None else trial.checkpoint

    @property
    def _num_busy(self) -> int:
        """Number of slots in use or reserved for a trial that is being paused."""
        return len(self._trials) + len(self._reserved)

    @property
    def _has_room(self) -> bool:
        """True if a trial may start now."""
        return self._num_busy < self._n_workers or self._is_offered

    def _free_slot(self) -> int:
        """Return the smallest slot that is not in use."""
        num_busy = self._num_busy
        if num_busy >= self._n_workers:
            self._is_offered = False  # the offer is used
        return heapq.heappop(self._free_slots) if self._free_slots else num_busy

    def _take_slot(self, trial: Trial, *, source: int | None = None, fallback: bool = False) -> None:
        trial.slot = self._free_slot()
        self._trials[trial.trial_id] = trial
        self._pending[trial.trial_id] = trial.config
        self._num_starts += 1
        self._start(trial, source=source, fallback=fallback)

    def _start(self, trial: Trial, *, source: int | None = None, fallback: bool = False) -> None:
        name = None if trial.checkpoint is None else trial.checkpoint.name
        self._orders.append(
            Start(
                trial.trial_id, trial.attempt, trial.config, trial.slot, trial.iter, name, source, fallback, trial.alone
            )
        )

    def _resume(self, trial_id: int) -> None:
        trial = self._paused.get(trial_id)
        if trial is not None and trial.hold:
            trial.wanted = True  # resumes when the user releases it
        elif trial is not None:
            del self._paused[trial_id]
            trial.begin_again()
            self._take_slot(trial)
        else:  # its process has not exited yet: reserve a slot
            self._reserved[trial_id] = self._free_slot()

    def _drop_paused(self, trial_id: int, now_s: float) -> None:
        trial = self._paused.pop(trial_id, None)
        if trial is not None:
            self._over_paused(trial, now_s)
        else:  # its process has not exited yet
            self._trials[trial_id].dropped = True

    def _over_paused(self, trial: Trial, now_s: float) -> None:
        self._orders.append(Judged(trial.trial_id, trial.attempt, _STOPPED))
        self._over(trial, _STOPPED, now_s)

    def _may_resume(self, trial_id: int) -> bool:
        trial = self._trials.get(trial_id)
        if trial is not None:
            may = trial.told == "pause" and not trial.dropped and not trial.wanted
            return may and trial_id not in self._reserved
        return trial_id in self._paused and not self._paused[trial_id].wanted

    def _shown_paused(self) -> str:
        paused = [i for i in sorted([*self._paused, *self._trials]) if self._may_resume(i)]
        return ", ".join(map(str, paused[:20])) or "none"

    def _consult_about_next(self, now_s: float) -> NextTrial | None:
        """Return the scheduler's validated answer, or None if the scheduler and so the search failed."""
        scheduler = self._scheduler
        ask = SuggestContext(
            self._num_starts,
            self._next_id,
            self._space,
            seed=self._seed,
            purpose="next",
            pending=MappingProxyType(self._pending),
            now_s=now_s,
            no_new_configs=self._exhausted or self._stage == "draining",
            can_start_trial=self._stage == "open",
        )
        try:
            return self._checked_next(scheduler.next(ask), type(scheduler).__name__)
        except Refused as error:
            self._scheduler_failed(error.cause, now_s)
        except Exception as error:  # user code: any exception ends the search in order
            self._scheduler_failed(error, now_s)
        return None

    def _checked_next(self, answer: NextTrial, scheduler: str) -> NextTrial:
        """Validate the scheduler's answer, or raise Refused. Return Wait for a new trial that may not start."""
        if type(answer) is Wait or (self._stage == "draining" and type(answer) in (New, Clone)):
            return _WAIT
        answer = checked_answer(answer, scheduler, self._may_resume, self._shown_paused)
        if not isinstance(answer, (New, Clone)):
            return answer
        if isinstance(answer, Clone) and not 0 <= answer.trial_id < self._next_id:
            known = f"{self._next_id} trials have started, from 0 on"
            raise Refused(ValueError(f"{scheduler}.next() returned {answer!r}, but there is no such trial: {known}"))
        if isinstance(answer, Clone) or answer.config is not None:
            place = f"the configuration of {scheduler}.next()"
            config = checked_config(answer.config, self._space, place, self._next_id)
            return New(config) if isinstance(answer, New) else Clone(answer.trial_id, config)
        if self._exhausted and not self._enqueued:
            return _WAIT
        return answer

    # Limits and the end of the search.

    def _finish(self) -> list[Order]:
        """Order Finish: no slot is busy and no trial starts any more."""
        self._stage = "finished"
        self._deadlines = Deadlines()
        if self._error is None and (text := self._failures.all_failed(self._counts.num_trials_started)) is not None:
            self._kind, self._error = "all-failed", text
        self._orders.append(Finish(self._reason, self._error, self._cause, self._kind))
        orders, self._orders = self._orders, []
        return orders

    def _verdict(self, now_s: float) -> Verdict | None:
        if self._started_s is None or self._stage in ("stopping", "finished"):
            return None
        self._counts.wallclock_s = now_s
        if self._stage == "draining":
            return self._criterion.hard_verdict(self._counts)
        return self._criterion.verdict(self._counts)

    def _keep_limits(self, now_s: float) -> None:
        verdict = self._verdict(now_s)
        if verdict is not None:
            self._obey(verdict, now_s)

    def _obey(self, verdict: Verdict, now_s: float) -> None:
        if verdict.lets_running_finish:
            self._stop_starting(verdict.reason)
        else:
            self._halt(verdict.reason, now_s)

    def _set_search_deadline(self) -> None:
        limit_s = self._criterion.max_wallclock_time
        if limit_s is not None and math.isfinite(limit_s) and self._stage in ("open", "draining"):
            self._deadlines.set(_SEARCH_ENDS, limit_s)
        else:
            self._deadlines.clear(_SEARCH_ENDS)

    def _set_criterion(self, stop: Mapping[str, object]) -> None:
        self._criterion = StoppingCriterion.from_json(stop)
        self._counts.watch(self._criterion.watched(self._metric))
        self._counts.keep_front(self._criterion.reference_losses(self._objectives))

    def _stop_starting(self, reason: str) -> None:
        if self._stage == "open":
            self._stage = "draining"
            self._reason = reason
            self._orders.append(StopStarting(reason))

    def _halt(self, reason: str, now_s: float) -> None:
        """Start no more trials and stop the running ones. The first reason is the one recorded."""
        if self._stage in ("stopping", "finished"):
            return
        self._stop_starting(reason)
        self._stage = "stopping"
        self._reason = reason
        self._deadlines.clear(_SEARCH_ENDS)
        self._deadlines.clear(_SUGGESTION_DUE)
        for trial in self._trials.values():
            if trial.phase in ("starting", "running"):
                trial.told = "suspend"
                self._terminate(trial, reason, now_s)

    def _fail_search(
        self, kind: FinishKind, reason: str, error: str, now_s: float, *, cause: Exception | None = None
    ) -> None:
        if self._error is None and self._stage != "finished":
            self._kind, self._error, self._cause = kind, error, cause
        self._halt(reason, now_s)

    def _scheduler_failed(self, error: Exception, now_s: float) -> None:
        text = f"the scheduler raised {type(error).__name__}: {error}"
        self._fail_search("scheduler", "the scheduler failed", text, now_s, cause=error)

    # Stopping a trial.

    def _tell_to_stop(self, trial: Trial, now_s: float) -> None:
        trial.phase = "stopping"
        self._deadlines.set(trial.trial_id, now_s + self._grace_s)

    def _terminate(self, trial: Trial, why: str, now_s: float) -> None:
        self._tell_to_stop(trial, now_s)
        self._orders.append(Terminate(trial.trial_id, why))

    def _kill(self, trial: Trial, why: str) -> None:
        trial.phase = "killed"
        self._deadlines.clear(trial.trial_id)
        self._orders.append(Kill(trial.trial_id, why))

    # Reports.

    def _refused(self, trial: Trial, values: Mapping[str, object], problem: str, now_s: float) -> None:
        """Fail the search if a required value is missing and no trial has reported it: its name is misspelled."""
        needed = [("metric", objective.metric) for objective in self._objectives]
        needed += [("constraint's value", constraint.metric) for constraint in self._constraints]
        if self._resource_attr is not None:
            needed.append(("resource", self._resource_attr))
        kind, first = next(((kind, name) for kind, name in needed if not is_number(values.get(name))), ("", None))
        if not self._metric_seen and first is not None and first not in values:
            trial.told = "suspend"
            self._tell_to_stop(trial, now_s)
            self._fail_search("no-metric", f"the {kind} {first!r} was not reported", problem, now_s)

    def _decide(self, trial: Trial, fact: facts.Reported) -> Decision:
        """Return the decision about a new report."""
        values, now_s = fact.values, fact.now_s
        violations = violations_of(self._constraints, values) if self._constraints else ()
        excess = infeasibility(self._constraints, violations) if violations else 0.0
        self._counts.add_report(values, is_feasible=excess == 0.0)
        losses = tuple([sign * values[metric] for metric, sign in self._signs])  # type: ignore[operator]  # checked
        if -math.inf in losses:  # see Objective.loss: an infinite value is never the best
            losses = tuple([math.inf if loss == -math.inf else loss for loss in losses])
        if any(map(math.isnan, losses)) or any(map(math.isnan, violations)):
            metrics = [one.metric for one in self._objectives] + [bound.metric for bound in self._constraints]
            metric = next(name for name, got in zip(metrics, losses + violations, strict=True) if math.isnan(got))
            trial.fault = Reason("nan", f"the objective reported {metric}=nan")
            trial.told = "stop"
            self._tell_to_stop(trial, now_s)
            return STOP
        self._counts.add_result(trial.trial_id, excess, losses)
        self._keep_best(trial, excess, losses[0], values)
        resource_attr = self._resource_attr
        resource = float(trial.iter)
        if resource_attr is not None:
            resource = round_resource(float(values[resource_attr]))  # type: ignore[arg-type]  # checked
        observation = Observation(
            trial.trial_id, trial.config, trial.iter, resource, losses, values, violations, excess
        )
        decision = self._consult(trial, observation, now_s)
        if decision is CONTINUE and trial.hold:
            decision = PAUSE
            trial.wanted = True
        if decision is not CONTINUE and not trial.was_told:
            trial.told = "stop" if decision is STOP else "pause"
            maximum = self._scheduler.max_resource
            trial.at_maximum = decision is STOP and maximum is not None and resource >= round_resource(float(maximum))
            self._tell_to_stop(trial, now_s)
        return decision

    def _keep_best(self, trial: Trial, excess: float, loss: float, values: Mapping[str, object]) -> None:
        number = self._counts.num_evaluations
        if (
            math.isfinite(loss)
            and math.isfinite(excess)
            and (trial.best is None or (excess, loss, number) < trial.best)
        ):
            value: float = values[self._metric]  # type: ignore[assignment]  # checked
            trial.best = Ranked(excess, loss, number, trial.iter, trial.trial_id, value, trial.config)

    def _consult(self, trial: Trial, observation: Observation, now_s: float) -> Decision:
        scheduler = self._scheduler
        try:
            if self._listener is not None:
                self._listener.observe(observation)
            decision = scheduler.on_report(observation)
            if type(decision) is Decision:
                return decision
            return checked_decision(decision, type(scheduler).__name__, trial.trial_id)
        except Refused as error:
            failed = error.cause
        except Exception as error:  # user code: any exception ends the search in order
            failed = error
        trial.told = "suspend"
        self._tell_to_stop(trial, now_s)
        self._scheduler_failed(failed, now_s)
        return STOP

    def _keep_checkpoint(self, trial: Trial, name: str) -> None:
        best = trial.best
        if best is not None and best.iter > trial.iter:  # a repeated report: the best would be void after a crash
            best = None if trial.checkpoint is None else trial.checkpoint.best
        before, trial.checkpoint = trial.checkpoint, Checkpoint(name, trial.iter, best)
        self._holders.hold(name)
        self._drop(before, trial.trial_id)

    def _drop(self, checkpoint: Checkpoint | None, trial_id: int) -> None:
        """Release one reference to the checkpoint and order its deletion with the last one."""
        if checkpoint is not None and self._holders.let_go(checkpoint.name):
            self._orders.append(Discard(trial_id, checkpoint.name))

    # Ends of trials.
    def _end(self, trial: Trial, outcome: Outcome, now_s: float) -> None:
        status, reason = self._judge(trial, outcome)
        trial.will_retry = reason is not None and self._may_retry(trial, reason, outcome)
        if status is not _PAUSED and status is not _STOPPED:
            trial.told = ""
        trial.phase = "ended"
        self._deadlines.clear(trial.trial_id)
        self._orders.append(Judged(trial.trial_id, trial.attempt, status, reason, trial.will_retry))
        if trial.will_retry:
            trial.num_retries += 1
            trial.alone = trial.alone or outcome.retry_alone
            self._rewind(trial, now_s)
        elif trial.told == "suspend":
            trial.counted = True
            self._counts.num_trials_stopped += 1
        elif status is _PAUSED:
            self._count_failure(trial, None, now_s)
            trial.has_paused = True
        else:
            self._over(trial, status, now_s)
            self._watch_metrics(status, now_s)
            self._count_failure(trial, reason, now_s)

    def _count_failure(self, trial: Trial, reason: Reason | None, now_s: float) -> None:
        """Count the trial's outcome, once per trial, and fail the search after too many equal failures."""
        if trial.has_paused:
            return
        failed = self._failures.add(reason, has_reported=trial.iter > 0)
        if failed is not None and self._stage != "stopping":
            self._fail_search("equal-failures", failed.partition(" (")[0], failed, now_s)

    def _judge(self, trial: Trial, outcome: Outcome) -> tuple[Status, Reason | None]:
        if trial.fault is not None:
            fault = trial.fault
            return _FAILED, Reason(fault.kind, fault.text, outcome.traceback, outcome.last_output)
        if outcome.kind == "stopped" or (trial.was_told and outcome.kind in _OBEYED):
            if trial.at_maximum:
                return _COMPLETED, None
            return (_PAUSED if trial.told == "pause" else _STOPPED), None
        if outcome.kind != "returned":
            return _FAILED, Reason(outcome.kind, outcome.text, outcome.traceback, outcome.last_output)
        if trial.iter == 0:
            text = f"the objective ended without reporting {self._metric!r}, and returned nothing"
            return _FAILED, Reason("no-report", text, outcome.traceback, outcome.last_output)
        return _COMPLETED, None

    def _may_retry(self, trial: Trial, reason: Reason, outcome: Outcome) -> bool:
        # Another trial may have caused a GPU fault or a lack of memory, so retry once even without `retries`.
        is_caused_by_others = reason.kind == "gpu-fault" or (reason.kind == "out-of-memory" and outcome.retry_alone)
        allowed = max(self._retries, 1) if is_caused_by_others else self._retries
        return reason.kind in _RETRIED and trial.num_retries < allowed and not trial.was_told

    def _rewind(self, trial: Trial, now_s: float) -> None:
        """Discard the reports after the trial's last checkpoint and notify the searcher and the scheduler."""
        reached = trial.reached
        to_iter = trial.rewind()
        if to_iter == reached:
            return
        try:
            if self._listener is not None:
                self._listener.on_rollback(trial.trial_id, to_iter)
            self._scheduler.on_rollback(trial.trial_id, to_iter)
        except Exception as error:  # user code, see above
            self._scheduler_failed(error, now_s)

    def _over(self, trial: Trial, status: Status, now_s: float) -> None:
        """Finish the trial: update the counters, release its checkpoint, notify the searcher and the scheduler."""
        counts = self._counts
        counts.num_trials_completed += status is _COMPLETED
        counts.num_trials_stopped += status is _STOPPED
        counts.num_trials_failed += status is _FAILED
        counts.add_end(trial.trial_id)
        is_best = trial.best is not None and (self._best is None or trial.best < self._best)
        if is_best:
            self._best = trial.best
        checkpoint, trial.checkpoint = trial.checkpoint, None
        if checkpoint is not None and (self._keep_checkpoints or self._scheduler.clones):
            self._left[trial.trial_id] = checkpoint
        elif is_best:
            self._drop(self._best_left, trial.trial_id)
            self._best_left = checkpoint
        else:
            self._drop(checkpoint, trial.trial_id)
        trial.best = None
        try:
            if self._listener is not None:
                self._listener.on_end(trial.trial_id, str(status))
            self._scheduler.on_end(trial.trial_id, status)
        except Exception as error:  # user code, see above
            self._scheduler_failed(error, now_s)

    def _watch_metrics(self, status: Status, now_s: float) -> None:
        """Fail the search if a completed trial never reported a metric of the stopping criterion."""
        problem = self._counts.missing_metric() if status is _COMPLETED else None
        if problem is not None and self._stage != "stopping":
            self._fail_search("no-metric", "a metric of the stopping criterion was not reported", problem, now_s)

    def _release(self, trial: Trial, now_s: float) -> None:
        """Free the slot of a trial whose process has exited, and move the trial to its next state."""
        trial_id = trial.trial_id
        self._in_batch = False
        del self._trials[trial_id], self._pending[trial_id]
        heapq.heappush(self._free_slots, trial.slot)
        reserved = self._reserved.pop(trial_id, None)
        if reserved is not None:
            heapq.heappush(self._free_slots, reserved)
        if trial.will_retry and trial.given_up:  # a user stopped it before the retry
            trial.will_retry = False
            self._orders.append(Judged(trial_id, trial.attempt, _FAILED))
            self._over(trial, _FAILED, now_s)
        elif trial.will_retry:  # as soon as a slot is free, or after the search is resumed
            self._again.append(trial)
        elif trial.told == "suspend":
            trial.phase = "suspended"
            self._suspended[trial_id] = trial
        elif trial.told == "pause" and (trial.dropped or trial.given_up):
            self._over_paused(trial, now_s)
        elif trial.told == "pause":
            trial.phase = "paused"
            trial.wanted = trial.wanted or reserved is not None
            if trial.wanted and not trial.hold:
                self._again.append(trial)
            else:
                self._paused[trial_id] = trial

    def _searcher_name(self) -> str:
        return f"{type(self._scheduler.searcher).__name__}.suggest()"
