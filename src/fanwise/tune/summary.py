"""What the terminal shows of an experiment that is read from its record: the same snapshot as while it runs."""

from .experiment import Experiment
from .history import IN_PROGRESS, Trial, worker_time_s
from .table import MAX_ROWS, SearchSnapshot, TrialRow


def snapshot_of(experiment: Experiment) -> SearchSnapshot:
    """The state of an experiment as `table` draws it; of the trials, the latest and the best are rows."""
    history, best = experiment.history(), experiment.best
    metadata = experiment.metadata
    statuses = [history.status_of(trial) for trial in history.trials.values()]
    shown = sorted(history.trials)[-MAX_ROWS:]
    if best is not None and best.trial_id not in shown:
        shown = [best.trial_id, *shown[1:]]

    def row(trial: Trial) -> TrialRow:
        last = trial.last.last_row
        columns = history.reports.values.items()
        values = {} if last is None else {name: column[last] for name, column in columns if column[last] is not None}
        seconds = worker_time_s(history, trial)
        reports = trial.last.num_reports or None
        return TrialRow(trial.trial_id, history.status_of(trial), reports, trial.config, values, seconds)

    running = statuses.count(IN_PROGRESS)
    return SearchSnapshot(
        name=experiment.name,
        metric=str(metadata["metric"]),
        rows=[row(history.trials[trial_id]) for trial_id in shown],
        config_names=tuple(metadata["space"]),
        value_names=tuple(history.reports.values),
        running=running,
        finished=len(statuses) - running,
        completed=statuses.count("Completed"),
        failed=statuses.count("Failed"),
        best=None if best is None else (best.value, best.trial_id),
        elapsed_s=history.last_s,
        utilisation=experiment.utilisation,
    )
