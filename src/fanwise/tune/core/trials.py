"""Trials of a search that are not finished: their states, deadlines, checkpoints and best reports.

    state             slot  event                                                next state
    ----------------  ----  ---------------------------------------------------  ---------------------------------------
    starting          used  Ready                                                running; the timeout starts
    starting|running  used  a scheduler decision, a limit, a timeout, a NaN      stopping, with a plan; the grace period
                            report or a user's command                           starts
    starting|running  used  Ended                                                attempt-ended (plan retry), or finished
    stopping          used  the grace period ends, or a second Interrupt         killed
    stopping|killed   used  Ended with plan pause, hold, drop or suspend, and    attempt-ended
                            no failure
    stopping|killed   used  Ended with plan stop or complete, or with a failure  finished
    attempt-ended     used  Free: plan retry                                     starting in the same slot, or queued
    attempt-ended     used  Free: plan pause                                     paused, or queued if already resumed
    attempt-ended     used  Free: plan hold                                      held, or queued if the hold was removed
    attempt-ended     used  Free: plan suspend                                   suspended
    attempt-ended     used  Free: plan drop, or a user stopped it meanwhile      removed
    finished          used  Free                                                 removed
    paused            -     the scheduler resumes it                             starting, or held if a user holds it
    paused            -     the scheduler or a user stops it                     removed
    held              -     a user removes the hold, or stops it                 queued, or removed
    queued            -     a slot is free                                       starting
    queued            -     a user holds it, or stops it                         held, or removed
    suspended         -     Resumed: a new process resumes the search            queued

A held trial was paused by a user, and the scheduler considers it running. A finished trial is removed. Its best report
and checkpoint are kept if they may be needed (see `Trials.finish`).

A trial's reports are numbered 1, 2, ... over all attempts. An attempt starts at the iteration of its checkpoint, or 0.
After a crash, the reports after the checkpoint are void. After a pause they remain valid and are repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

from ..constraints import format_violations
from ..schedulers.scheduler import Status
from .actions import Action, Discard, Kill, Reason, SetStatus, Start, Terminate
from .events import Outcome, Ready

# States are strings, because accessing a member of an Enum is as slow as a call (Python 3.11).
State: TypeAlias = Literal[
    "starting", "running", "stopping", "killed", "attempt-ended", "finished", "paused", "held", "queued", "suspended"
]  # fmt: skip
# A plan says why an attempt stops. It determines the next state of the trial when the slot is free.
# complete: stop at the maximum resource. hold: a user pauses the trial. drop: pause and never resume.
# suspend: the search ends, and the trial continues if the search is resumed.
Plan: TypeAlias = Literal["", "stop", "complete", "pause", "hold", "drop", "suspend", "retry"]

# A crash may be transient. A timeout, a NaN or a missing report is caused by the configuration or the program.
_CRASHES: Final = ("exception", "exit", "signal", "out-of-memory", "gpu-fault", "lost")
# Outcomes that count as a stop if the trial was asked to stop, because it may exit, be killed or return before it
# handles the request. Exceptions and running out of memory remain failures.
_STOPS: Final = ("stopped", "signal", "exit", "gpu-fault", "lost", "returned")


_NO_VIOLATIONS: Final[Mapping[str, float]] = {}  # not a MappingProxyType, which cannot be pickled


class RankedReport(NamedTuple):
    """A report with its rank: better reports sort first, and the earliest wins ties.

    Attributes:
        infeasibility: 0 if the report is feasible; see `constraints`.
        number: number of the report among the reports of all trials.
        value: the metric as reported.
        iter: number of the report in its trial.
        violations: {violated constraint: excess}, if known.
    """

    infeasibility: float
    loss: float
    number: int
    value: float
    trial_id: int
    iter: int
    config: Mapping[str, Any]
    violations: Mapping[str, float] = _NO_VIOLATIONS

    @property
    def violated(self) -> str:
        """The violations as text."""
        return format_violations(self.violations)


class Checkpoint(NamedTuple):
    """A saved checkpoint: its name, the iteration of its report, and the trial's best report up to then."""

    name: str
    iter: int
    best: RankedReport | None


@dataclass(slots=True)
class Trial:
    """A trial that may still run or still uses a slot.

    Args:
        reserved_slot: slot of the next attempt if the scheduler resumed the trial before its process had exited.
        iter: number of the last report of the current attempt.
        last_observed_iter: number of the last report that the scheduler and the searcher have seen.
        hold: a user has paused the trial, and only a user can resume it.
        finish_when_free: a user stopped the trial while its attempt was ending, so it finishes when its slot is free.
        needs_whole_gpu: the trial ran out of memory on a share of a GPU, so it is retried on a whole one.
        has_counted_outcome: its first outcome was passed to `Failures`, which counts each trial once.
        fault: the reason why the trial fails, whatever the outcome of the attempt is.
    """

    trial_id: int
    config: Mapping[str, object]
    slot: int = -1
    reserved_slot: int | None = None
    attempt: int = -1
    num_retries: int = 0
    state: State = "starting"
    plan: Plan = ""
    iter: int = 0
    last_observed_iter: int = 0
    checkpoint: Checkpoint | None = None
    best: RankedReport | None = None
    hold: bool = False
    finish_when_free: bool = False
    has_counted_outcome: bool = False
    needs_whole_gpu: bool = False
    fault: Reason | None = None

    @property
    def from_iter(self) -> int:
        """The iteration at which the next attempt starts."""
        return 0 if self.checkpoint is None else self.checkpoint.iter

    def rewind(self) -> bool:
        """Discard the reports after the last checkpoint. Return True if there were any."""
        previous_iter = self.last_observed_iter
        self.iter = self.last_observed_iter = self.from_iter
        self.best = None if self.checkpoint is None else self.checkpoint.best
        return self.iter != previous_iter


@final
class Trials:
    """The unfinished trials of one search.

    Args:
        actions: the actions of the current event, to which this class appends.
        keeps_checkpoints: keep the checkpoints of all finished trials. If False, keep only that of the best trial.

    Attributes:
        active: trials that use a slot, in the order of their starts.
        pending_configs: the configurations of the active trials.
        paused: paused and held trials.
        queued: trials that start in the next free slots, in this order, before the scheduler is asked.
        deadlines: ends of timeouts and grace periods.
        checkpoint_refs: number of references to each checkpoint name, by unfinished trials and by kept checkpoints of
            finished trials.
    """

    def __init__(
        self,
        actions: list[Action],
        metric: str,
        *,
        timeout_s: float | None,
        grace_s: float,
        retries: int,
        keeps_checkpoints: bool,
    ) -> None:
        self._actions = actions
        self._metric = metric
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._retries = retries
        self._keeps_checkpoints = keeps_checkpoints
        self.active: dict[int, Trial] = {}
        self.pending_configs: dict[int, Mapping[str, object]] = {}
        self.paused: dict[int, Trial] = {}
        self.queued: dict[int, Trial] = {}
        self.suspended: dict[int, Trial] = {}
        self.deadlines = Deadlines()
        self.checkpoint_refs: dict[str, int] = {}
        self._finished_checkpoints: dict[int, Checkpoint] = {}
        self._finished_best: RankedReport | None = None

    @property
    def best(self) -> RankedReport | None:
        """The best valid report of all trials."""
        trials = {**self.active, **self.paused, **self.queued, **self.suspended}
        candidates = [self._finished_best, *(trial.best for trial in trials.values())]
        return min(filter(None, candidates), default=None)

    @property
    def has_held_trials(self) -> bool:
        """True if a user's hold keeps a trial from running."""
        return any(trial.state == "held" for trial in self.paused.values())

    def find_active(self, trial_id: int, attempt: int) -> Trial | None:
        """Return the trial if `attempt` is its current attempt and uses a slot, otherwise None."""
        trial = self.active.get(trial_id)
        return trial if trial is not None and trial.attempt == attempt else None

    def find_controllable(self, trial_id: int) -> Trial | None:
        """Return the trial if a user can still pause, resume or stop it, otherwise None."""
        trial = self.active.get(trial_id) or self.paused.get(trial_id) or self.queued.get(trial_id)
        return None if trial is None or trial.state == "finished" else trial

    def is_paused_by_scheduler(self, trial_id: int) -> bool:
        """Return True if the scheduler paused the trial and has not resumed it since."""
        trial = self.active.get(trial_id) or self.paused.get(trial_id)
        if trial is None:
            return False
        return trial.state == "paused" or (trial.plan == "pause" and trial.reserved_slot is None)

    # Attempts.

    def create(self, trial_id: int, config: Mapping[str, object], source: int | None = None) -> Trial:
        """Return a new trial. A clone starts from the last checkpoint of the trial `source`, if any."""
        trial = Trial(trial_id, config)
        checkpoint = None if source is None else self._checkpoint_of(source)
        if checkpoint is not None:
            self.checkpoint_refs[checkpoint.name] += 1
            trial.checkpoint = checkpoint._replace(best=None)
            trial.last_observed_iter = checkpoint.iter
        return trial

    def start(self, trial: Trial, slot: int, *, source: int | None = None, fallback: bool = False) -> None:
        trial_id = trial.trial_id
        self.paused.pop(trial_id, None)
        self.queued.pop(trial_id, None)
        self.active[trial_id] = trial
        self.pending_configs[trial_id] = trial.config
        trial.slot, trial.state, trial.plan, trial.fault = slot, "starting", "", None
        trial.attempt += 1
        trial.iter = trial.from_iter
        name = None if trial.checkpoint is None else trial.checkpoint.name
        start = trial_id, trial.attempt, trial.config, slot, trial.iter, name, source, fallback, trial.needs_whole_gpu
        self._actions.append(Start(*start))

    def on_ready(self, event: Ready) -> None:
        trial = self.find_active(event.trial_id, event.attempt)
        if trial is not None and trial.state == "starting":
            trial.state = "running"
            if self._timeout_s is not None:
                self.deadlines.set(trial.trial_id, event.now_s + self._timeout_s)

    def begin_stopping(self, trial: Trial, plan: Plan, now_s: float) -> None:
        """Set the plan and start the grace period. The caller tells the trial to stop, by `Answer` or `Terminate`."""
        trial.state, trial.plan = "stopping", plan
        self.deadlines.set(trial.trial_id, now_s + self._grace_s)

    def terminate(self, trial: Trial, plan: Plan, reason: str, now_s: float) -> None:
        self.begin_stopping(trial, plan, now_s)
        self._actions.append(Terminate(trial.trial_id, reason))

    def kill(self, trial: Trial, reason: str) -> None:
        if trial.state not in ("killed", "attempt-ended", "finished"):
            trial.state = "killed"
            self.deadlines.clear(trial.trial_id)
            self._actions.append(Kill(trial.trial_id, reason))

    def tick(self, now_s: float) -> None:
        for trial_id in self.deadlines.take_due(now_s):
            trial = self.active[trial_id]
            if trial.state == "running":
                start = "the objective of this attempt was called"
                text = f"still running {self._timeout_s:g} s after {start} (trial_timeout_s)"
                trial.fault = Reason("time-out", text)
                self.terminate(trial, "stop", text, now_s)
            else:
                self.kill(trial, f"still running {self._grace_s:g} s after it was asked to stop (stop_grace_s)")

    def end(self, trial: Trial, outcome: Outcome) -> tuple[Status, Reason | None]:
        """End the attempt of a trial. Return the status of the trial and, if it failed, the reason."""
        status, reason = self._result_of(trial, outcome)
        if reason is not None and self._may_retry(trial, reason, outcome):
            trial.plan = "retry"
            trial.num_retries += 1
            trial.needs_whole_gpu = trial.needs_whole_gpu or outcome.retry_alone
        elif status is not Status.PAUSED and (status is not Status.STOPPED or trial.plan != "suspend"):
            trial.plan = ""
        trial.state = "attempt-ended" if trial.plan else "finished"
        self.deadlines.clear(trial.trial_id)
        self._actions.append(SetStatus(trial.trial_id, trial.attempt, status, reason, trial.plan == "retry"))
        return status, reason

    def _result_of(self, trial: Trial, outcome: Outcome) -> tuple[Status, Reason | None]:
        if trial.fault is not None:
            kind, text = trial.fault.kind, trial.fault.text
        elif outcome.kind == "stopped" or (trial.plan and outcome.kind in _STOPS):
            if trial.plan == "complete":
                return Status.COMPLETED, None
            return Status.PAUSED if trial.plan in ("pause", "hold", "drop") else Status.STOPPED, None
        elif outcome.kind != "returned":
            kind, text = outcome.kind, outcome.text
        elif trial.iter == 0:
            kind, text = "no-report", f"the objective ended without reporting {self._metric!r}, and returned nothing"
        else:
            return Status.COMPLETED, None
        return Status.FAILED, Reason(kind, text, outcome.traceback, outcome.last_output)

    def _may_retry(self, trial: Trial, reason: Reason, outcome: Outcome) -> bool:
        # Another trial may have caused a GPU fault or a lack of memory, so retry at least once even if `retries` is 0.
        is_out_of_memory_on_share = reason.kind == "out-of-memory" and outcome.retry_alone
        may_be_caused_by_other_trial = reason.kind == "gpu-fault" or is_out_of_memory_on_share
        limit = max(self._retries, 1) if may_be_caused_by_other_trial else self._retries
        return reason.kind in _CRASHES and trial.num_retries < limit and not trial.plan

    def release(self, trial: Trial) -> Status | None:
        """Move a trial whose slot is free to its next state. Return its status if this finishes the trial."""
        del self.active[trial.trial_id], self.pending_configs[trial.trial_id]
        plan, is_resumed = trial.plan, trial.reserved_slot is not None
        trial.plan, trial.reserved_slot = "", None
        if not plan:
            return None  # the trial was finished when its attempt ended
        if plan == "suspend":
            trial.state = "suspended"
            self.suspended[trial.trial_id] = trial
        elif plan == "drop" or trial.finish_when_free:
            status = Status.FAILED if plan == "retry" else Status.STOPPED
            self._actions.append(SetStatus(trial.trial_id, trial.attempt, status))
            return status
        elif plan == "retry" or ((plan == "hold" or is_resumed) and not trial.hold):
            self._queue(trial)
        else:
            trial.state = "held" if plan == "hold" or is_resumed else "paused"
            self.paused[trial.trial_id] = trial
        return None

    # Holds, stops and resumed searches.

    def _queue(self, trial: Trial) -> None:
        trial.state = "queued"
        self.queued[trial.trial_id] = trial

    def set_hold(self, trial: Trial, hold: bool) -> bool:
        """Set or remove a user's hold on the trial. Return True if this queues the trial."""
        trial.hold = hold
        if hold and trial.state == "queued":
            self.paused[trial.trial_id] = self.queued.pop(trial.trial_id)
            trial.state = "held"
        elif not hold and trial.state == "held":
            self._queue(self.paused.pop(trial.trial_id))
            return True
        return False

    def stop_for_scheduler(self, trial: Trial) -> bool:
        """Stop a paused trial. Return False if the trial will be finished later, when its slot is free."""
        if trial.state == "paused":
            self._remove(trial)
            return True
        trial.plan = "drop"
        return False

    def stop_for_user(self, trial: Trial, now_s: float) -> bool:
        """Stop a trial. Return False if the trial will be finished later, when its attempt ends or its slot is free."""
        if trial.state in ("paused", "held", "queued"):
            self._remove(trial)
            return True
        if trial.state in ("starting", "running"):
            self.terminate(trial, "stop", "stopped by hand", now_s)
        elif trial.plan in ("pause", "hold", "drop", "retry"):
            trial.finish_when_free = True
        return False

    def _remove(self, trial: Trial) -> None:
        self.paused.pop(trial.trial_id, None)
        self.queued.pop(trial.trial_id, None)
        self._actions.append(SetStatus(trial.trial_id, trial.attempt, Status.STOPPED))

    def suspend_active(self) -> int:
        """Suspend the active trials of a tuner that exited, except those that were asked to stop or pause.

        Return the number of suspended trials that had been counted as stopped.
        """
        num_stopped = len(self.suspended)
        for trial in self.active.values():
            num_stopped += trial.state == "attempt-ended" and trial.plan == "suspend"
            if trial.state in ("starting", "running") or trial.plan == "suspend":
                trial.state, trial.plan = "attempt-ended", "suspend"
                self.deadlines.clear(trial.trial_id)
        return num_stopped

    def queue_suspended(self) -> None:
        """Queue the suspended trials of a resumed search. Sort all queued trials by id."""
        trials = self.queued | self.suspended
        self.queued.clear()
        self.suspended.clear()
        for _, trial in sorted(trials.items()):
            self._queue(trial)

    # Best reports and checkpoints.

    def keep_checkpoint(self, trial: Trial, name: str) -> None:
        best = trial.best
        if best is not None and best.iter > trial.iter:  # `best` would be void after a crash
            best = None if trial.checkpoint is None else trial.checkpoint.best
        previous, trial.checkpoint = trial.checkpoint, Checkpoint(name, trial.iter, best)
        self.checkpoint_refs[name] = self.checkpoint_refs.get(name, 0) + 1
        self._discard(previous, trial.trial_id)

    def finish(self, trial: Trial) -> None:
        """Keep the best report and the checkpoint of a finished trial if they may be needed."""
        best, checkpoint = trial.best, trial.checkpoint
        trial.best = trial.checkpoint = None
        is_best = best is not None and (self._finished_best is None or best < self._finished_best)
        if is_best:
            self._finished_best = best
        if is_best and not self._keeps_checkpoints:
            for previous in self._finished_checkpoints.values():
                self._discard(previous, trial.trial_id)
            self._finished_checkpoints.clear()
        if checkpoint is not None and (is_best or self._keeps_checkpoints):
            self._finished_checkpoints[trial.trial_id] = checkpoint
        else:
            self._discard(checkpoint, trial.trial_id)

    def _checkpoint_of(self, trial_id: int) -> Checkpoint | None:
        trial = self.find_controllable(trial_id)
        if trial is not None:
            return trial.checkpoint
        return self._finished_checkpoints.get(trial_id) if self._keeps_checkpoints else None

    def _discard(self, checkpoint: Checkpoint | None, trial_id: int) -> None:
        """Remove a reference to the checkpoint, and discard the checkpoint if that was the last reference."""
        if checkpoint is not None:
            self.checkpoint_refs[checkpoint.name] -= 1
            if not self.checkpoint_refs[checkpoint.name]:
                del self.checkpoint_refs[checkpoint.name]
                self._actions.append(Discard(trial_id, checkpoint.name))


@final
class Deadlines:
    """At most one deadline per trial.

    Attributes:
        next_s: the earliest deadline, or None. Cached, because it is read after every event.

    >>> deadlines = Deadlines()
    >>> deadlines.set(1, 5.0); deadlines.set(2, 3.0); deadlines.set(1, 1.0)
    >>> deadlines.next_s, deadlines.take_due(3.0)
    (1.0, [1, 2])
    """

    def __init__(self) -> None:
        self._times_s: dict[int, float] = {}  # by trial id; the deadline that was set last is the last entry
        self.next_s: float | None = None

    def set(self, trial_id: int, at_s: float) -> None:
        """Set the deadline of the trial, in place of any earlier one."""
        self._times_s.pop(trial_id, None)
        self._times_s[trial_id] = at_s
        self.next_s = min(self._times_s.values())

    def clear(self, trial_id: int) -> None:
        if self._times_s.pop(trial_id, None) is not None:
            self.next_s = min(self._times_s.values(), default=None)

    def take_due(self, now_s: float) -> list[int]:
        """Remove the deadlines that are due and return their trial ids, the earliest first."""
        due_ids = [trial_id for trial_id, at_s in self._times_s.items() if at_s <= now_s]
        due_ids.sort(key=self._times_s.__getitem__)
        for trial_id in due_ids:
            self.clear(trial_id)
        return due_ids
