"""The tuner's decisions: which trial runs in which slot, who is told to stop or pause, and when the search is over.

    handle(fact)  ->  orders, in the order to carry them out

    New, Clone --> running --ended--> Completed, Stopped or Failed          (the trial is over, and forgotten)
                    |   ^---crashed, with retries---'
                    |-- PAUSE --> paused --Resume--> running                from its last checkpoint
                    '-- the search ends --> suspended --Resumed--> running  likewise

Knows trials, slots, times and reports as plain values; knows nothing of processes, links, the record or the screen.
The scheduler decides about trials and the searcher about configurations; both are told only what counts. What they
return is checked here. Facts may come late, twice, or for trials that were never there: such a fact changes nothing
and never raises. The same facts give the same orders: replay and resume hand the recorded ones in again.

Invariants: a slot is busy from Start until Free; every Reported is answered by exactly one Answer or Reject, which
comes first; StopStarting and then Finish are ordered once, Finish only when no slot is busy, until Resumed; a finished
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
# A crash may be bad luck; a time-out, a NaN or a missing report comes from the configuration or the program.
_RETRIED = ("exception", "exit", "signal", "out-of-memory", "gpu-fault", "lost")
# How a trial may end that was told to stop: by TrialStopped, by our signal, or because it was done anyway.
_OBEYED = ("stopped", "signal", "exit", "gpu-fault", "lost", "returned")
_WAIT: Final = Wait()
# The keys of deadlines that are no trial's.
_SEARCH_ENDS = -1
_SUGGESTION_DUE = -2


class Listener(Protocol):
    """What a searcher is told: its methods but `suggest`, which is asked for by an order."""

    def observe(self, observation: Observation) -> None: ...
    def on_rollback(self, trial_id: int, to_iter: int) -> None: ...
    def on_end(self, trial_id: int, status: str) -> None: ...


@final
class Tuning:
    """The state machine of one search. Hand in facts and carry out the orders, first any `Earlier` and then `Begin`.

    Args:
        scheduler: decides about trials; `begin` was called. What it raises ends the search.
        space: of the configurations.
        criterion: when the search ends.
        n_workers: slots; 0: trials run only for who asks for them.
        searcher: is told what happens; None: the scheduler's own. A caller that runs a searcher in another thread
            hands in what passes the calls on.
        constraints: what every report must meet; None: the scheduler's.
        seed: of the search; the scheduler's and the searcher's chance.
        asynchronous: False: the next batch starts when every slot of the last one is free.
        trial_timeout_s: seconds from Ready until the attempt is terminated; None: never.
        stop_grace_s: seconds from being told to stop until Kill.
        max_equal_failures: the search fails when the first so many finished trials all failed alike; None: never.
        retries: further attempts of a trial that crashed.
        keep_checkpoints: whether checkpoints of finished trials are kept too.

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
        self._free_slots: list[int] = []  # a heap; these and the slots in use are 0, 1, 2 and so on without gaps
        self._is_offered = False  # one more trial than there are workers may start
        self._trials: dict[int, Trial] = {}
        self._pending: dict[int, Mapping[str, object]] = {}
        self._paused: dict[int, Trial] = {}
        self._suspended: dict[int, Trial] = {}
        self._again: deque[Trial] = deque()  # hold no slot and are to run next
        self._reserved: dict[int, int] = {}  # trial that is being paused -> the slot in which it goes on
        self._enqueued: deque[Mapping[str, object]] = deque()
        self._holders = CheckpointHolders()
        self._left: dict[int, Checkpoint] = {}  # of trials that are over, where these are kept
        self._best_left: Checkpoint | None = None
        self._deadlines: Deadlines[int] = Deadlines()
        self._stage: Stage = "open"
        self._started_s: float | None = None
        self._interrupts = 0
        self._num_starts = 0
        self._num_suggestions = 0
        self._asked: int | None = None  # the suggestion that is being made
        self._suggestion: Mapping[str, object] | None = None  # made ahead of need
        self._new_wanted = False  # a slot waits for a suggestion
        self._exhausted = False
        self._nothing_left = False  # the scheduler will give no paused trial a slot any more
        self._in_batch = False  # slots that are free now are filled together
        self._metric_seen = False
        self._best: Ranked | None = None  # of the trials that are over
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
        """What is to be done because of the fact."""
        self._handlers[type(fact)](fact)
        if type(fact) is not facts.Reported:
            self._keep_limits(fact.now_s)
        if self._trials or self._stage in ("open", "finished") or self._waits_for_people():
            orders, self._orders = self._orders, []
            return orders
        return self._finish()

    def listen(self, searcher: Listener | None) -> None:
        """From now on this is told, in place of the searcher: a replay is over, and the searcher gets a thread."""
        self._listener = searcher

    # What is known.

    @property
    def best(self) -> Best | None:
        """The best finite report of the first objective so far; the earlier one of equals. Void ones do not count.

        One that meets all constraints goes before all that do not; of these the nearest to it is the best.
        """
        ranked = [trial.best for trial in self._living() if trial.best is not None]
        if self._best is not None:
            ranked.append(self._best)
        return min(ranked).report if ranked else None

    @property
    def counts(self) -> Counts:
        """What was started, reported and finished so far. Owned by the machine: read only."""
        return self._counts

    @property
    def is_finished(self) -> bool:
        """Whether Finish was ordered."""
        return self._stage == "finished"

    @property
    def next_tick_s(self) -> float | None:
        """When a Tick must next come in; None: not before another fact has."""
        return self._deadlines.next_s

    @property
    def checkpoints(self) -> frozenset[str]:
        """The names of all checkpoints that may still be needed."""
        return self._holders.names

    def _living(self) -> list[Trial]:
        """All trials that are not over, each once."""
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
        except Exception as error:  # user code: whatever it raises ends the search, in order
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
            return  # it took too long, and the question was answered at random
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
                continue  # the search's own: of its end the criterion says so
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
        """Forget an offer to run one trial that was not taken."""
        self._is_offered = False

    def _on_workers(self, fact: facts.Workers) -> None:
        """With fewer workers nothing starts until fewer trials run. A batch that is full does not grow."""
        self._in_batch = self._in_batch and self._has_room
        self._n_workers = fact.n_workers
        self._fill(fact.now_s)

    def _on_resumed(self, fact: facts.Resumed) -> None:
        """Whoever ran, runs again from its last checkpoint, first of all, in the order of the trials' ids.

        Whoever had been told to stop or pause is judged as if it had done so: it was decided.
        """
        now_s = fact.now_s
        self._stage, self._interrupts = "open", 0
        self._reason, self._error, self._cause, self._kind = "", None, None, "limit"
        self._started_s = 0.0
        if fact.stop is not None:
            self._set_criterion(fact.stop)
        if fact.n_workers is not None:
            self._n_workers = fact.n_workers
        gone = list(self._trials.values())
        judged = [trial for trial in gone if trial.was_told and (trial.told in ("stop", "pause") or trial.fault)]
        for trial in gone:
            if trial.phase != "ended" and trial not in judged:
                trial.phase, trial.told = "ended", "suspend"
        for trial in judged:
            self._end(trial, Outcome("lost", "its tuner was gone before it said how the trial ended"), now_s)
        for trial in gone:
            self._release(trial, now_s)
        for trial in self._suspended.values():
            if trial.counted:
                trial.counted = False
                self._counts.num_trials_stopped -= 1
            self._rewind(trial, now_s)
        again = {trial.trial_id: trial for trial in [*self._again, *self._suspended.values()]}
        self._again = deque(again[trial_id] for trial_id in sorted(again))
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
        """The trial, if it runs, is paused, or waits for a slot. One that is over may still hold its slot."""
        trial = self._trials.get(trial_id) or self._paused.get(trial_id)
        if trial is None:
            return next((trial for trial in self._again if trial.trial_id == trial_id), None)
        return None if trial.is_over else trial

    def _find(self, trial_id: int, attempt: int) -> Trial | None:
        """The trial, if this attempt of it holds a slot. Facts about any other are late."""
        trial = self._trials.get(trial_id)
        return trial if trial is not None and trial.attempt == attempt else None

    # What runs next.

    @property
    def _next_id(self) -> int:
        return self._counts.num_trials_started

    def _fill(self, now_s: float) -> None:
        """Give the free slots something to run. In batches: from when nothing runs until the first slot comes back."""
        self._in_batch = self._in_batch or not self._trials
        if not self._asynchronous and not self._in_batch:
            return
        while True:
            self._keep_limits(now_s)
            if not self._has_room or self._stage not in ("open", "draining") or self._started_s is None:
                return
            if self._again:  # they have started: no limit on new trials holds them back
                trial = self._again.popleft()
                trial.begin_again()
                self._take_slot(trial)
            elif not self._start_next(now_s):
                return

    def _start_next(self, now_s: float) -> bool:
        """Whether what the scheduler says was done. If not, another fact may bring it, or nothing ever will."""
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
        """Whether a person keeps a trial from going on: the search waits for that person."""
        return any(trial.hold and trial.wanted for trial in self._paused.values())

    def _waits_for_people(self) -> bool:
        """Nothing runs and nothing new starts: whether a trial goes on when a person lets it, or asks for one."""
        if self._stage != "draining":
            return False
        may_be_asked = self._n_workers == 0 and bool(self._paused) and not self._nothing_left
        return bool(self._again) or may_be_asked or self._is_held()

    def _start_suggested(self, now_s: float) -> bool:
        """Start a new trial with the configuration that comes next: a person's, the one made ahead, or a new one."""
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
            # A copy for one that reads it in its thread, while trials start and end.
            pending=MappingProxyType(self._pending) if self._at_once else dict(self._pending),
            now_s=now_s,
            suggest_timeout_s=self._suggest_timeout_s,
        )
        self._orders.append(Suggest(self._asked, ask))

    def _ask_ahead(self, now_s: float) -> None:
        """A searcher with a budget begins before a worker is free."""
        if self._suggest_timeout_s is not None and self._stage == "open" and self._suggestion is None:
            self._ask_searcher(now_s)

    def _fall_back(self, now_s: float) -> None:
        """The searcher took longer than its budget and a worker waits: draw at random. Its answer will be late."""
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
        """The number of slots in use, or reserved for a trial that is being paused."""
        return len(self._trials) + len(self._reserved)

    @property
    def _has_room(self) -> bool:
        """Whether a trial may start now."""
        return self._num_busy < self._n_workers or self._is_offered

    def _free_slot(self) -> int:
        """Return the smallest slot that is not in use."""
        num_busy = self._num_busy
        if num_busy >= self._n_workers:
            self._is_offered = False  # the offer is taken
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
            Start(trial.trial_id, trial.attempt, trial.config, trial.slot, trial.iter, name, source, fallback)
        )

    def _resume(self, trial_id: int) -> None:
        trial = self._paused.get(trial_id)
        if trial is not None and trial.hold:
            trial.wanted = True  # it goes on when the person lets it
        elif trial is not None:
            del self._paused[trial_id]
            trial.begin_again()
            self._take_slot(trial)
        else:  # it has been told, but its process is not gone yet: the slot waits for it
            self._reserved[trial_id] = self._free_slot()

    def _drop_paused(self, trial_id: int, now_s: float) -> None:
        trial = self._paused.pop(trial_id, None)
        if trial is not None:
            self._over_paused(trial, now_s)
        else:  # it has been told, but its process is not gone yet
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
        """The scheduler's answer, checked; None: it failed, and the search with it."""
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
        except Exception as error:  # user code: whatever it raises ends the search, in order
            self._scheduler_failed(error, now_s)
        return None

    def _checked_next(self, given: NextTrial, who: str) -> NextTrial:
        """What the scheduler has answered, or Refused; a new trial that may not begin means Wait."""
        if type(given) is Wait or (self._stage == "draining" and type(given) in (New, Clone)):
            return _WAIT
        answer = checked_answer(given, who, self._may_resume, self._shown_paused)
        if not isinstance(answer, (New, Clone)):
            return answer
        if isinstance(answer, Clone) and not 0 <= answer.trial_id < self._next_id:
            known = f"{self._next_id} trials have started, from 0 on"
            raise Refused(ValueError(f"{who}.next() returned {answer!r}, but there is no such trial: {known}"))
        if isinstance(answer, Clone) or answer.config is not None:
            place = f"the configuration of {who}.next()"
            config = checked_config(answer.config, self._space, place, self._next_id)
            return New(config) if isinstance(answer, New) else Clone(answer.trial_id, config)
        if self._exhausted and not self._enqueued:
            return _WAIT
        return answer

    # Limits and the end.

    def _finish(self) -> list[Order]:
        """No slot is busy and nothing starts any more: the last order of a search is that it is over."""
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
        """Start nothing more and stop what runs. The first reason to do so is the one that is told."""
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

    # Telling a trial to stop.

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
        """A value that nobody has ever reported is misspelt: no further trial can do better."""
        needed = [("metric", objective.metric) for objective in self._objectives]
        needed += [("constraint's value", constraint.metric) for constraint in self._constraints]
        if self._resource_attr is not None:
            needed.append(("resource", self._resource_attr))
        what, first = next(((what, name) for what, name in needed if not is_number(values.get(name))), ("", None))
        if not self._metric_seen and first is not None and first not in values:
            trial.told = "suspend"
            self._tell_to_stop(trial, now_s)
            self._fail_search("no-metric", f"the {what} {first!r} was not reported", problem, now_s)

    def _decide(self, trial: Trial, fact: facts.Reported) -> Decision:
        """What to answer to a report that is new."""
        values, now_s = fact.values, fact.now_s
        violations = violations_of(self._constraints, values) if self._constraints else ()
        beyond = infeasibility(self._constraints, violations) if violations else 0.0
        self._counts.add_report(values, is_feasible=beyond == 0.0)
        losses = tuple([sign * values[metric] for metric, sign in self._signs])  # type: ignore[operator]  # checked
        if -math.inf in losses:  # as Objective.loss says: an infinite value is never the best
            losses = tuple([math.inf if loss == -math.inf else loss for loss in losses])
        if any(map(math.isnan, losses)) or any(map(math.isnan, violations)):
            metrics = [one.metric for one in self._objectives] + [bound.metric for bound in self._constraints]
            metric = next(name for name, got in zip(metrics, losses + violations, strict=True) if math.isnan(got))
            trial.fault = Reason("nan", f"the objective reported {metric}=nan")
            trial.told = "stop"
            self._tell_to_stop(trial, now_s)
            return STOP
        self._counts.add_result(trial.trial_id, beyond, losses)
        self._keep_best(trial, beyond, losses[0], values)
        resource_attr = self._resource_attr
        resource = float(trial.iter)
        if resource_attr is not None:
            resource = round_resource(float(values[resource_attr]))  # type: ignore[arg-type]  # checked
        observation = Observation(
            trial.trial_id, trial.config, trial.iter, resource, losses, values, violations, beyond
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

    def _keep_best(self, trial: Trial, beyond: float, loss: float, values: Mapping[str, object]) -> None:
        number = self._counts.num_evaluations
        if (
            math.isfinite(loss)
            and math.isfinite(beyond)
            and (trial.best is None or (beyond, loss, number) < trial.best)
        ):
            value: float = values[self._metric]  # type: ignore[assignment]  # checked
            trial.best = Ranked(beyond, loss, number, trial.iter, trial.trial_id, value, trial.config)

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
        except Exception as error:  # user code: whatever it raises ends the search, in order
            failed = error
        trial.told = "suspend"
        self._tell_to_stop(trial, now_s)
        self._scheduler_failed(failed, now_s)
        return STOP

    def _keep_checkpoint(self, trial: Trial, name: str) -> None:
        best = trial.best
        if best is not None and best.iter > trial.iter:  # on the way there again: void after a crash
            best = None if trial.checkpoint is None else trial.checkpoint.best
        before, trial.checkpoint = trial.checkpoint, Checkpoint(name, trial.iter, best)
        self._holders.hold(name)
        self._drop(before, trial.trial_id)

    def _drop(self, checkpoint: Checkpoint | None, trial_id: int) -> None:
        """Whoever had this checkpoint needs it no more; the last one to need it has it deleted."""
        if checkpoint is not None and self._holders.let_go(checkpoint.name):
            self._orders.append(Discard(trial_id, checkpoint.name))

    # Ends.

    def _end(self, trial: Trial, outcome: Outcome, now_s: float) -> None:
        status, reason = self._judge(trial, outcome)
        trial.will_retry = reason is not None and self._may_retry(trial, reason)
        if status is not _PAUSED and status is not _STOPPED:
            trial.told = ""
        trial.phase = "ended"
        self._deadlines.clear(trial.trial_id)
        self._orders.append(Judged(trial.trial_id, trial.attempt, status, reason, trial.will_retry))
        if trial.will_retry:
            trial.num_retries += 1
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
        """Whether the trial's failure, or its success, makes one of the search. A trial counts once."""
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

    def _may_retry(self, trial: Trial, reason: Reason) -> bool:
        # Another trial may have caused a GPU fault, so a trial is repeated once even without `retries`.
        allowed = max(self._retries, 1) if reason.kind == "gpu-fault" else self._retries
        return reason.kind in _RETRIED and trial.num_retries < allowed and not trial.was_told

    def _rewind(self, trial: Trial, now_s: float) -> None:
        """What the trial reported after its last checkpoint is void, and whoever was told of it hears so."""
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
        """The trial is over for good."""
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
        """Fails the search when a whole trial had no sign of a metric that the stopping criterion waits for."""
        problem = self._counts.missing_metric() if status is _COMPLETED else None
        if problem is not None and self._stage != "stopping":
            self._fail_search("no-metric", "a metric of the stopping criterion was not reported", problem, now_s)

    def _release(self, trial: Trial, now_s: float) -> None:
        """Free the slot of a trial whose process is gone. The trial waits, or is over."""
        trial_id = trial.trial_id
        self._in_batch = False
        del self._trials[trial_id], self._pending[trial_id]
        heapq.heappush(self._free_slots, trial.slot)
        reserved = self._reserved.pop(trial_id, None)
        if reserved is not None:
            heapq.heappush(self._free_slots, reserved)
        if trial.will_retry and trial.given_up:  # promised, but a person has stopped it in the meantime
            trial.will_retry = False
            self._orders.append(Judged(trial_id, trial.attempt, _FAILED))
            self._over(trial, _FAILED, now_s)
        elif trial.will_retry:  # when a slot is free, or after a search that stops has been resumed
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
