"""The commands `fanwise tune ls`, `show` and `importance`.

A record may come from someone else, so all its texts are made printable by `base.text`.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..base.errors import RecordError
from ..base.home import experiments_folder, list_experiments
from ..base.plain_json import attributes, json_text
from ..base.text import counted, printable, printable_line
from ..base.tracebacks import of_the_user
from ..base.urls import is_url
from ..pool.output import tail
from ..tune import Experiment, load_experiment
from ..tune.display.table import method_line, summary_view, text_of
from ..tune.record.names import output_files
from ..tune.record.overview import Overview, SearchReader, State, overview_of, read_search
from ..tune.record.state import SearchState
from ..tune.record.trials import MAX_ROWS, Attempt, Trial, TrialRow
from ..tune.runtime.checkpoint_store import checkpoint_root
from .console import table_lines
from .experiments import best_line, front_lines, shown_config, utilization_of

_STATES: Mapping[State, str] = {
    "running": "running",
    "finished": "finished",
    "crashed": "crashed: its tuner was killed or crashed. All earlier reports are kept",
    "unknown": "not finished; only the machine that started it knows whether it is running",
}
_MAX_FAILURES, _MAX_REPORTS = 10, 20
_MAX_OUTPUT_BYTES, _MAX_OUTPUT_LINES = 1 << 16, 200


def list_lines() -> Iterator[str]:
    """Yield a line per experiment, including those that cannot be read."""
    overviews = list(_overviews())
    if not overviews:
        yield f"no experiments in {printable_line(str(experiments_folder()))}; start one with fanwise tune run"
        return
    rows = [(name, *_cells_of(overview)) for name, overview in overviews]
    yield from table_lines([("name", "state", "trials", "best"), *rows], right=[2])


def list_json() -> str:
    """Return the experiments as JSON. Those that cannot be read have an `error`."""
    return json_text([_overview_json(name, overview) for name, overview in _overviews()])


def _overview_json(name: str, overview: Overview | RecordError) -> dict[str, object]:
    if isinstance(overview, RecordError):
        return {"name": name, "path": str(experiments_folder() / name), "state": "unreadable", "error": str(overview)}
    best = None
    if overview.best is not None:
        best = {"value": overview.best[0], "trial_id": overview.best[1], "feasible": not overview.violated}
    return {
        "name": name,
        "path": str(overview.path),
        **attributes(overview, "state", "reason", "metric", "mode"),
        **attributes(overview, "num_trials", "num_running", "num_paused", "num_lost"),
        **{f"num_{status.lower()}": number for status, number in overview.num_ended.items()},
        "best": best,
        "elapsed_s": overview.elapsed_s,
    }


def _overviews() -> Iterator[tuple[str, Overview | RecordError]]:
    folder = experiments_folder()
    if os.path.lexists(folder) and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder of experiments. Set FANWISE_HOME to another folder")
    for name in list_experiments():
        try:
            yield name, overview_of(experiments_folder() / name)
        except RecordError as error:
            yield name, error


def _cells_of(overview: Overview | RecordError) -> tuple[str, str, str]:
    """Return the state, the number of trials and the best value."""
    if isinstance(overview, RecordError):
        return "unreadable", "-", overview.message.partition("\n")[0]
    best = "-"
    if overview.best is not None:
        best = f"{overview.metric}={overview.best[0]:.5g} (trial {overview.best[1]})"
        best = f"none feasible; closest {best}" if overview.violated else best
    return overview.state, str(overview.num_trials), best


def show_lines(name: str, *, all_trials: bool) -> Iterator[str]:
    """Yield the state, the trials, the best configuration, the utilization and the reasons of failures."""
    experiment = load_experiment(name)
    reader = read_search(experiment.path)
    state, snapshot, trials = reader.state, reader.snapshot(), reader.search.trials
    shown = printable_line(name)
    ended = f" ({printable_line(experiment.end_reason)})" if experiment.end_reason else ""
    yield f"experiment {printable_line(experiment.name)}: {_STATES[state]}{ended}"
    if method := method_line(experiment.metadata.get("scheduler", {})):
        yield printable_line(method)
    if all_trials:
        snapshot = replace(snapshot, rows=list(_rows(reader)))
    yield text_of(summary_view(snapshot, max_rows=len(trials) if all_trials else MAX_ROWS))
    if len(trials) > MAX_ROWS and not all_trials:
        yield f"all trials: fanwise tune show {shown} --all"
    if experiment.best is not None:
        yield best_line(experiment.best)
    yield from front_lines(experiment)
    utilization = utilization_of(experiment)
    if utilization is not None:
        yield f"worker utilization: {utilization}"
    drawn = sum(trial.fallback for trial in trials.values())
    if drawn:
        yield f"drawn at random, because the searcher took too long: {counted(drawn, 'trial')}"
    failed = {i: trial.last.failure for i, trial in trials.items() if trial.last.failure}
    for trial_id, failure in list(failed.items())[:_MAX_FAILURES]:
        first_line = failure.text.partition("\n")[0]
        yield printable_line(f"trial {trial_id} failed ({failure.kind}): {first_line}")
    if len(failed) > _MAX_FAILURES:
        yield f"(and {len(failed) - _MAX_FAILURES} more failed trials)"
    if failed:
        yield f"details of a failure: fanwise tune show {shown} --trial {next(iter(failed))}"
    if state == "crashed":
        yield f"resume it: fanwise tune resume {shown}"
    yield f"folder: {printable_line(str(experiment.path))}"


def show_json(name: str) -> str:
    """Return an experiment with all its trials as JSON."""
    experiment = load_experiment(name)
    body = _overview_json(experiment.name, overview_of(experiment.path))
    if experiment.best is not None:
        body["best"] = attributes(experiment.best, "value", "trial_id", "iter", "config", "violations")
    body["utilization"] = experiment.utilization
    body["trials"] = [
        {**attributes(row, "trial_id", "status", "iter", "config", "worker_time_s"), "last": row.values}
        for row in _rows(read_search(experiment.path))
    ]
    return json_text(body)


def trial_lines(name: str, trial_id: int) -> Iterator[str]:
    """Yield a trial: configuration, metric, attempts, reports, checkpoint, files and failure.

    Raises:
        ValueError: there is no such trial.
    """
    experiment = load_experiment(name)
    failure = experiment.reason(trial_id)
    reader = read_search(experiment.path)
    trial = reader.search.trials[trial_id]
    yield f"trial {trial_id} of {printable_line(experiment.name)}: {_status(reader, trial)}"
    if trial.source is not None:
        yield f"a clone of trial {trial.source}"
    if trial.fallback:
        yield "drawn at random, because the searcher took too long"
    for key, value in trial.config.items():
        yield f"  {printable_line(key)} = {printable_line(str(value))}"
    yield from _metric_lines(reader.search, trial)
    for attempt in trial.attempts:
        yield _attempt_line(trial, attempt)
    yield from _report_lines(reader.search, trial)
    yield from _path_lines(experiment, trial)
    if failure is not None:
        yield printable(f"{failure.kind}: {failure.text}")
    output, errors = (
        tail(path, max_bytes=_MAX_OUTPUT_BYTES, max_lines=_MAX_OUTPUT_LINES)
        for path in output_files(experiment.path, trial_id, trial.last.number)
    )
    errors = of_the_user(errors)
    parts = [("standard output", output), ("standard error", errors)]
    traceback = printable((failure and failure.traceback) or "").strip()
    if traceback not in printable(errors):  # the worker usually prints it, too
        parts.insert(0, ("traceback", traceback))
    for title, text in parts:
        if text:
            yield f"--- {title} ---\n{printable(text)}"


def trial_json(name: str, trial_id: int) -> str:
    """Return a trial with all its reports as JSON. Raises ValueError if there is no such trial."""
    experiment = load_experiment(name)
    failure = experiment.reason(trial_id)
    reader = read_search(experiment.path)
    history = reader.search
    trial, reports, counts = history.trials[trial_id], history.reports, history.counted_mask()
    attempts = [
        {
            "attempt": attempt.number,
            "worker": attempt.slot,
            **attributes(
                attempt, "host", "status", "from_iter", "checkpoint", "started_s", "ready_s", "ended_s", "objective_s"
            ),
            "output": [str(path) for path in output_files(experiment.path, trial_id, attempt.number)],
        }
        for attempt in trial.attempts
    ]
    rows = [
        {
            "iter": reports.iters[row],
            "attempt": reports.attempts[row],
            "t_s": reports.t_s[row],
            "values": _values_of(history, row),
            "decision": reports.decisions[row],
            "counts": counts[row],
        }
        for row in _rows_of(history, trial_id)
    ]
    body = {
        "trial_id": trial_id,
        "experiment": experiment.name,
        "status": _status(reader, trial),
        **attributes(trial, "config", "source", "checkpoint"),
        "metric": history.metric,
        "best": trial.best and attributes(trial.best, "value", "iter"),
        "worker_time_s": trial.worker_time_s or 0.0,
        "attempts": attempts,
        "reports": rows,
        "folder": str(experiment.path / "trials" / str(trial_id)),
        "failure": failure and attributes(failure, "kind", "text"),
    }
    return json_text(body)


def _rows(reader: SearchReader) -> Iterator[TrialRow]:
    """Yield all trials as rows of the table."""
    history, values = reader.search, reader.search.reports.values
    for trial in history.trials.values():
        row = trial.last.last_report_index
        last = {} if row is None else {name: column[row] for name, column in values.items()}
        status, spent_s = history.status_of(trial, is_tuner_killed=reader.is_tuner_killed), trial.worker_time_s
        yield TrialRow(trial.trial_id, status, trial.last_iter or None, trial.config, last, spent_s)


def _status(reader: SearchReader, trial: Trial) -> str:
    return printable_line(reader.search.status_of(trial, is_tuner_killed=reader.is_tuner_killed))


def _rows_of(history: SearchState, trial_id: int) -> list[int]:
    return [row for row, report_trial_id in enumerate(history.reports.trial_ids) if report_trial_id == trial_id]


def _values_of(history: SearchState, row: int) -> dict[str, object]:
    return {name: column[row] for name, column in history.reports.values.items() if column[row] is not None}


def _metric_lines(history: SearchState, trial: Trial) -> Iterator[str]:
    metric, best = printable_line(history.metric), trial.best
    if best is None:
        yield f"{metric}: not reported"
        return
    overall = history.best()
    is_best = overall is not None and overall.trial_id == trial.trial_id
    note = "; the best of all trials" if is_best else ""
    if best.violated:
        note = f"; violates {printable_line(best.violated)}"
    yield f"{metric}: best {best.value:.6g} at report {best.iter} of {trial.last_iter}{note}"


def _attempt_line(trial: Trial, attempt: Attempt) -> str:
    start = f"from the checkpoint of report {attempt.from_iter}" if attempt.checkpoint else "from scratch"
    worker = f"worker {attempt.slot}" + (f" of {printable_line(attempt.host)}" if attempt.host else "")
    line = f"attempt {attempt.number}: {start}, on {worker}, started at {attempt.started_s:.2f} s"
    if attempt.ready_s is not None:
        line += f", objective started at {attempt.ready_s:.2f} s"
    if attempt.objective_s is not None:
        line += f" and took {attempt.objective_s:.2f} s"
    if attempt.ended_s is not None and attempt is not trial.last:
        line += f", {attempt.status.lower()}"
    if attempt.valid_to is not None and attempt.num_reports:
        line += f"; reports after {attempt.valid_to} do not count"
    return line + "".join(f"\n  left a thread running: {printable_line(thread)}" for thread in attempt.threads)


def _report_lines(history: SearchState, trial: Trial) -> Iterator[str]:
    """Yield the latest reports that count, one per line."""
    reports, counts = history.reports, history.counted_mask()
    rows = [row for row in _rows_of(history, trial.trial_id) if counts[row]]
    if len(rows) > _MAX_REPORTS:
        shown = f"fanwise tune show {printable_line(history.name)} --trial {trial.trial_id} --json"
        yield f"({len(rows) - _MAX_REPORTS} earlier reports: {shown})"
    for row in rows[-_MAX_REPORTS:]:
        values = {
            name: float(f"{value:.6g}") if isinstance(value, float) else value
            for name, value in _values_of(history, row).items()
        }
        decision = "" if reports.decisions[row] == "CONTINUE" else f"  {printable_line(reports.decisions[row])}"
        yield f"  report {reports.iters[row]} at {reports.t_s[row]:.2f} s: {shown_config(values)}{decision}"


def _path_lines(experiment: Experiment, trial: Trial) -> Iterator[str]:
    """Yield the paths of the checkpoint, the folder and the logs."""
    root = checkpoint_root(experiment.path, experiment.name, experiment.metadata.get("settings", {}).get("checkpoints"))
    if trial.checkpoint is not None:
        place = f"{root}/{trial.checkpoint}"
        is_deleted = not is_url(root) and not os.path.exists(place)
        yield f"checkpoint: {printable_line(place)}" + (", deleted as no longer needed" if is_deleted else "")
    folder = experiment.path / "trials" / str(trial.trial_id)
    if folder.is_dir():
        yield f"folder: {printable_line(str(folder))}"
    logs = [path for path in output_files(experiment.path, trial.trial_id, trial.last.number) if path.exists()]
    if logs:
        yield f"log: {printable_line(' '.join(map(str, logs)))}"


def importance_lines(name: str, metric: str | None) -> Iterator[str]:
    """Yield a line per hyperparameter, the most important first.

    Raises ValueError if there are too few results, or no such objective.
    """
    importances = load_experiment(name).importances(metric)
    yield from table_lines(
        [(bar.name, f"{bar.mean:.3f} +- {bar.deviation:.3f}") for bar in importances.hyperparameters], right=[1]
    )
    yield f"for {printable_line(importances.metric)}, of {importances.in_words()}"


def importance_json(name: str, metric: str | None) -> str:
    """Return the importances as JSON. Raises ValueError like `importance_lines`."""
    importances = load_experiment(name).importances(metric)
    body = {
        **attributes(importances, "metric", "correlation", "num_stopped", "num_results"),
        "num_trials": len(importances.trials),
        "importances": [attributes(bar, "name", "mean", "deviation") for bar in importances.hyperparameters],
    }
    return json_text(body)
