"""The utilization of the workers: the share of their time that was spent in objectives.

Each run of the tuner is measured from the start of its first objective to the decision to start no more trials. This
excludes start-up and shutdown. A resumed search has several runs.
"""

from typing import final


@final
class Utilization:
    """Sums the available worker time and the worker time spent in objectives.

    All times are seconds since the search began. A window is an interval with a constant number of workers.
    """

    def __init__(self, n_workers: int) -> None:
        self._n_workers = n_workers
        self._windows: list[tuple[float, float, int]] = []  # (begin, end, number of workers) of closed windows
        self._window_begin_s: float | None = None  # of the open window
        self._window_workers = n_workers  # of the open window; may exceed n_workers while removed workers are busy
        self.stop_s: float | None = None  # time of the decision to start no more trials
        self._busy_s = 0.0  # in objectives that have ended
        # (trial, attempt) -> start of the objective that is running
        self._objective_start_s: dict[tuple[int, int], float] = {}
        self.first_objective_s: float | None = None  # start of the first objective

    def on_ready(self, trial_id: int, attempt: int, now_s: float) -> None:
        """Handle the start of an objective."""
        self._objective_start_s[trial_id, attempt] = now_s
        self._update_window(now_s)
        if self._window_begin_s is None:
            self._window_begin_s = now_s
        if self.first_objective_s is None:
            self.first_objective_s = now_s

    def on_end(self, trial_id: int, attempt: int, now_s: float, objective_s: float | None) -> float:
        """Handle the end of an attempt, and return the seconds in its objective.

        `objective_s` is the time that the trial measured. If it is None, the time since `on_ready` is used. Returns 0
        if the objective never started.
        """
        ready_s = self._objective_start_s.pop((trial_id, attempt), None)
        if ready_s is None:
            return 0.0
        self._update_window(now_s)
        duration_s = now_s - ready_s if objective_s is None else objective_s
        # `objective_s` may exceed now_s - ready_s, because the objective starts before its Ready message arrives. Time
        # after `stop_s` is not counted.
        self._busy_s += max(0.0, duration_s if self.stop_s is None else min(duration_s, self.stop_s - ready_s))
        return max(0.0, duration_s)

    def on_stop(self, now_s: float) -> None:
        """Handle the decision to start no more trials."""
        if self.stop_s is None:
            self.stop_s = now_s

    def on_workers(self, n_workers: int, now_s: float) -> None:
        """Handle a new number of workers. A removed worker is counted until its objective ends."""
        self._n_workers = n_workers
        self._update_window(now_s)

    def _update_window(self, now_s: float) -> None:
        # An ask-and-tell search has 0 workers and no utilization.
        window_workers = max(self._n_workers, len(self._objective_start_s)) if self._n_workers else 0
        if window_workers != self._window_workers:
            windows = self.windows(now_s)
            if self._window_begin_s is not None:
                self._windows, self._window_begin_s = windows, now_s
            self._window_workers = window_workers

    def on_resume(self, run_end_s: float) -> dict[int, float]:
        """End the previous run, whose last event was at `run_end_s`.

        Return {trial_id: seconds in the objective} of the attempts that were running at that time.
        """
        running = list(self._objective_start_s)
        durations_s = {trial_id: self.on_end(trial_id, attempt, run_end_s, None) for trial_id, attempt in running}
        self._windows = self.windows(run_end_s)
        self._window_begin_s = self.stop_s = None
        return durations_s

    def windows(self, now_s: float) -> list[tuple[float, float, int]]:
        """Return all windows in order, as (begin_s, end_s, number of workers)."""
        end_s = now_s if self.stop_s is None else self.stop_s
        if self._window_begin_s is None or end_s <= self._window_begin_s:
            return self._windows
        return [*self._windows, (self._window_begin_s, end_s, self._window_workers)]

    def share(self, now_s: float) -> float | None:
        """Return the utilization, between 0 and 1, or None before the first objective has started."""
        until_s = now_s if self.stop_s is None else self.stop_s
        capacity_s = sum(window_workers * (end_s - begin_s) for begin_s, end_s, window_workers in self.windows(now_s))
        busy_s = self._busy_s + sum(max(0.0, until_s - ready_s) for ready_s in self._objective_start_s.values())
        return min(1.0, busy_s / capacity_s) if capacity_s > 0 else None
