"""Experiments as users see them: tables, the best, utilization, failures, figures; while they run and afterwards."""

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from recorded_search import RecordedSearch

from fanwise.base.errors import RecordError
from fanwise.tune import Space, choice, loguniform, parameter, randint
from fanwise.tune.experiment import Best, Experiment, load_experiment
from fanwise.tune.plot_data import hyperparameter_axes
from fanwise.tune.record.lock import is_held
from fanwise.tune.record.log import Record
from fanwise.tune.record.overview import read_search
from fanwise.tune.record.trials import Failure
from fanwise.tune.space import space_to_json

META = {
    "name": "lenet",
    "objective": "train",
    "metric": "error",
    "mode": "min",
    "n_workers": 2,
    "asynchronous": False,
    "seed": 1,
    "space": {"lr": {"domain": "loguniform", "lower": 0.01, "upper": 1.0}, "max_epochs": {"constant": 2}},
}
REASON = {"kind": "exception", "text": "ValueError: no", "traceback": "Traceback ...", "last_output": "epoch 1"}


@contextmanager
def searching(folder: Path, **meta: Any) -> Iterator[RecordedSearch]:  # Any: JSON
    """A search's rows go into a record, each committed at once."""
    with Record.create(folder, {**META, **meta}) as record:

        def add(t_s: float, kind: str, trial_id: int | None, body: dict[str, Any]) -> None:  # Any: JSON
            record.append(t_s, kind, trial_id, body)
            record.commit()

        yield RecordedSearch(add)


def write_search(search: RecordedSearch) -> None:
    """Trial 0 completes, trial 1 fails and is tried again, trial 2 is stopped and ends after the stop."""
    search.start(0.0, 0, {"lr": 0.1, "max_epochs": 2}, slot=0)
    search.start(0.0, 1, {"lr": 0.2, "max_epochs": 2}, slot=1)
    search.ready(1.0, 0)
    search.ready(1.0, 1)
    search.report(2.0, 0, 1, {"epoch": 1, "error": 0.5})
    search.report(2.5, 1, 1, {"epoch": 1, "error": 0.01})
    search.end(3.0, 1, "Failed", 2.0, reason=REASON, will_retry=True)
    search.free(3.0, 1)
    search.report(4.0, 0, 2, {"epoch": 2, "error": 0.3, "note": "done"})
    search.end(4.0, 0, "Completed", 3.0)
    search.free(4.0, 0)
    search.start(4.0, 1, {"lr": 0.2, "max_epochs": 2}, attempt=1, slot=0)
    search.start(4.0, 2, {"lr": 0.3, "max_epochs": 2, "extra": "x"}, slot=1)
    search.ready(5.0, 1, attempt=1)
    search.ready(5.0, 2)
    search.report(6.0, 1, 1, {"epoch": 1, "error": 0.2}, attempt=1)
    search.report(7.0, 2, 1, {"epoch": 1, "error": math.nan})
    search.end(8.0, 1, "Completed", 3.0, attempt=1)
    search.free(8.0, 1, attempt=1)
    search.report(9.0, 2, 2, {"epoch": 2, "error": 0.25}, decision="STOP")
    search.stop(9.0, "max_wallclock_time")
    search.end(10.0, 2, "Stopped", 5.0)
    search.free(10.0, 2)
    search.finish(10.0, "max_wallclock_time")


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    with searching(tmp_path / "lenet") as search:
        write_search(search)
    return load_experiment(tmp_path / "lenet")


def test_results_have_a_row_for_each_valid_report(experiment: Experiment) -> None:
    expected = pd.DataFrame({
        "trial_id": [0, 0, 1, 2, 2],
        "epoch": [1, 2, 1, 1, 2],
        "error": [0.5, 0.3, 0.2, math.nan, 0.25],
        "note": [None, "done", None, None, None],
        "config_lr": [0.1, 0.1, 0.2, 0.3, 0.3],
        "config_max_epochs": [2, 2, 2, 2, 2],
        "config_extra": [None, None, None, "x", "x"],
        "st_attempt": [0, 0, 1, 0, 0],
        "st_tuner_time": [2.0, 4.0, 6.0, 7.0, 9.0],
        "st_worker_time": [1.0, 2.0, 3.0, 3.5, 4.5],
        "st_worker_iter": [1, 2, 1, 1, 2],
        "st_decision": ["CONTINUE", "CONTINUE", "CONTINUE", "CONTINUE", "STOP"],
        "st_status": ["Completed", "Completed", "Completed", "Stopped", "Stopped"],
    })  # fmt: skip
    pd.testing.assert_frame_equal(experiment.results, expected)


def test_trials_have_one_row_each(experiment: Experiment) -> None:
    expected = pd.DataFrame({
        "trial_id": [0, 1, 2],
        "status": ["Completed", "Completed", "Stopped"],
        "attempt": [0, 1, 0],
        "iter": [2, 1, 2],
        "source": [None, None, None],
        "config_lr": [0.1, 0.2, 0.3],
        "config_max_epochs": [2, 2, 2],
        "config_extra": [None, None, "x"],
        "epoch": [2, 1, 2],
        "error": [0.3, 0.2, 0.25],
        "note": ["done", None, None],
        "best_error": [0.3, 0.2, 0.25],
        "worker_time": [3.0, 5.0, 5.0],
        "started_s": [0.0, 0.0, 4.0],
        "ended_s": [4.0, 8.0, 10.0],
        "reason": [None, None, None],
        "reason_text": [None, None, None],
    })  # fmt: skip
    pd.testing.assert_frame_equal(experiment.trials, expected)


def test_best_report_is_valid(experiment: Experiment) -> None:
    assert experiment.best == Best(1, 0.2, {"lr": 0.2, "max_epochs": 2}, 1)


def test_metadata_equal_those_of_the_record(experiment: Experiment) -> None:
    assert experiment.metadata == {**META, "format": [3, 0]}
    assert experiment.name == "lenet"
    assert experiment.path.name == "lenet"
    assert repr(experiment).startswith("Experiment('lenet', ")


def test_experiment_of_a_running_search_is_up_to_date(tmp_path: Path) -> None:
    with searching(tmp_path / "e") as search:
        experiment = load_experiment(tmp_path / "e")
        assert experiment.best is None
        assert experiment.utilization is None
        assert len(experiment.results) == len(experiment.trials) == 0
        assert list(experiment.results.columns) == [
            "trial_id", "st_attempt", "st_tuner_time", "st_worker_time", "st_worker_iter", "st_decision", "st_status"
        ]  # fmt: skip
        search.start(0.0, 0, {"lr": 1.0})
        assert list(experiment.trials["status"]) == ["InProgress"]
        search.ready(1.0, 0)
        search.report(2.0, 0, 1, {"error": 3.0})
        assert experiment.best == Best(0, 3.0, {"lr": 1.0}, 1)
        assert experiment.utilization == pytest.approx(0.5)
        assert list(experiment.trials["worker_time"]) == [1.0]
        assert experiment.trials["ended_s"].isna().all()
        search.report(3.0, 0, 2, {"error": 2.0})
        assert list(experiment.results["st_status"]) == ["InProgress", "InProgress"]
        search.finish(4.0, "done")
        assert experiment.state == "finished"


def test_state_is_running_while_the_tuner_holds_the_lock(tmp_path: Path) -> None:
    with searching(tmp_path / "e") as search:
        experiment = load_experiment(tmp_path / "e")
        assert (experiment.state, experiment.end_reason) == ("running", None)
        search.finish(4.0, "interrupted")
        assert (experiment.state, experiment.end_reason) == ("finished", "interrupted")
    assert experiment.state == "finished"


def test_search_that_ends_during_the_check_has_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        search = stack.enter_context(searching(tmp_path / "e"))
        experiment = load_experiment(tmp_path / "e")

        def end_and_look(file: Path) -> bool | None:
            search.finish(4.0, "done")
            stack.close()
            return is_held(file)

        monkeypatch.setattr("fanwise.tune.record.overview.is_held", end_and_look)
        assert experiment.state == "finished"


WRITER = """
import os, signal, sys
from pathlib import Path
from fanwise.tune.record.log import Record
record = Record.create(Path(sys.argv[1]), {"name": "e", "metric": "error", "mode": "min", "n_workers": 1, "space": {}})
its_end, our_end = os.pipe()
if os.fork() == 0:
    os.write(our_end, b"x")
    sys.stdin.read()  # the child of a bare fork may live longer than the tuner
    os._exit(0)
os.read(its_end, 1)
start = {"action": "start", "trial": 0, "attempt": 0, "slot": 0, "config": {}}
record.append(0.0, "begin", None, {"actions": [start]})
record.commit()
print("written", flush=True)
signal.pause()
"""


def test_search_of_a_killed_tuner_is_crashed_even_if_a_fork_lives(tmp_path: Path) -> None:
    paths = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    program = [sys.executable, "-c", WRITER, str(tmp_path / "e")]
    with subprocess.Popen(program, env=paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "written\n"
        experiment = load_experiment(tmp_path / "e")
        before = experiment.state
        writer.kill()
        writer.wait()
        assert (before, experiment.state) == ("running", "crashed")
        assert list(experiment.trials["status"]) == ["Lost"]
        assert writer.stdin is not None
        writer.stdin.close()
        assert writer.stdout.read() == "", "the fork has ended, too"


def test_state_is_unknown_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError("no locks")

    monkeypatch.setattr("fanwise.tune.record.lock.fcntl.flock", refuse)
    with searching(tmp_path / "e"):
        assert load_experiment(tmp_path / "e").state == "unknown"


def test_failed_trial_has_a_reason(tmp_path: Path) -> None:
    with searching(tmp_path / "e") as search:
        search.start(0.0, 0, {})
        search.end(1.0, 0, "Failed", None, reason=REASON)
        search.start(1.0, 1, {})
    experiment = load_experiment(tmp_path / "e")
    failed = experiment.trials.iloc[0]
    assert (failed["reason"], failed["reason_text"]) == ("exception", "ValueError: no")
    assert experiment.reason(0) == Failure("exception", "ValueError: no", "Traceback ...", "epoch 1")
    assert experiment.reason(1) is None
    with pytest.raises(ValueError, match="no trial 7; its trials are 0 to 1"):
        experiment.reason(7)


def test_reported_names_of_built_in_columns_are_renamed(tmp_path: Path) -> None:
    with searching(tmp_path / "e") as search:
        search.start(0.0, 0, {"lr": 1.0})
        search.report(1.0, 0, 1, {"error": 1.0, "trial_id": 5, "status": "warm", "iter": 7, "config_lr": 9})
    experiment = load_experiment(tmp_path / "e")
    results, trials = experiment.results, experiment.trials
    assert (list(results["trial_id"]), list(results["reported_trial_id"])) == ([0], [5])
    assert (list(results["config_lr"]), list(results["reported_config_lr"])) == ([1.0], [9])
    assert list(results["status"]) == ["warm"]
    assert (list(trials["status"]), list(trials["reported_status"])) == (["Lost"], ["warm"])
    assert (list(trials["iter"]), list(trials["reported_iter"])) == ([1], [7])


def test_configurations_may_contain_lists(tmp_path: Path) -> None:
    with searching(tmp_path / "e") as search:
        search.start(0.0, 2, {"layers": [16]})
        search.start(0.0, 3, {"layers": [8, 4]}, slot=1)
        search.report(1.0, 2, 1, {"error": 1.0})
        search.report(1.0, 3, 1, {"error": 2.0})
    experiment = load_experiment(tmp_path / "e")
    assert list(experiment.results["config_layers"]) == [[16], [8, 4]]
    assert list(experiment.trials["config_layers"]) == [[16], [8, 4]]


def test_failed_export_leaves_no_file(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "taken.csv").mkdir()
    with pytest.raises(IsADirectoryError, match=r"'.*taken\.csv'$"):
        experiment.export(tmp_path / "taken.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lenet", "taken.csv"]


@pytest.mark.parametrize(
    ("file", "error"),
    [("none/results.csv", FileNotFoundError), ("lenet/events.jsonl/x.csv", NotADirectoryError)],
)
def test_error_of_an_export_names_the_file(
    file: str, error: type[OSError], experiment: Experiment, tmp_path: Path
) -> None:
    with pytest.raises(error) as raised:
        experiment.export(tmp_path / file)
    assert raised.value.filename == str(tmp_path / file)


def test_search_data_has_reports_and_spans(experiment: Experiment) -> None:
    from fanwise.plot.data import Span

    data = experiment.search_data()
    assert (data.name, data.metric, data.mode, data.n_workers) == ("lenet", "error", "min", 2)
    assert (data.startup_s, data.stop_s, data.last_s) == (1.0, 8.0, 9.0), "times since the first objective started"
    points = [row[:4] for row in data.reports.tolist() if math.isfinite(row[3])]
    assert points == [(0, 1.0, 1, 0.5), (0, 3.0, 2, 0.3), (1, 5.0, 1, 0.2), (2, 8.0, 2, 0.25)]
    assert len(data.reports) == 5
    assert list(data.spans) == [
        Span(0, 0, 0.0, 0.0, 3.0, "Completed", 3.0),
        Span(1, 1, 0.0, 0.0, 2.0, "Failed", 2.0),
        Span(0, 1, 3.0, 4.0, 7.0, "Completed", 3.0),
        Span(1, 2, 3.0, 4.0, 9.0, "Stopped", 5.0),
    ]


@pytest.mark.parametrize("objective_s", [1.25, None])
@pytest.mark.parametrize("stop_s", [9.0, None])
def test_utilization_equals_that_of_the_figure(tmp_path: Path, objective_s: float | None, stop_s: float | None) -> None:
    from fanwise.plot.data import worker_timeline

    with searching(tmp_path / "e") as search:
        for trial_id in range(4):
            begin_s = 2.5 * trial_id
            if trial_id == 2:
                search.start(3.0, 4, {}, slot=1)
                search.ready(3.5, 4)  # runs for ever
            search.start(begin_s, trial_id, {})
            search.ready(begin_s + 0.5, trial_id)
            if trial_id == 3 and stop_s is not None:
                search.stop(stop_s, "max_wallclock_time")
            search.end(begin_s + 2.0, trial_id, "Completed", objective_s)  # 0.25 s later than its objective
            search.free(begin_s + 2.25, trial_id)
    experiment = load_experiment(tmp_path / "e")
    timeline = worker_timeline(experiment.search_data())
    assert timeline.shares is not None
    busy, startup, idle = timeline.shares
    assert experiment.utilization == pytest.approx(busy)
    assert startup != 0.0 and idle != 0.0


def test_timeline_has_workers_that_were_added_during_the_search(tmp_path: Path) -> None:
    from fanwise.plot.data import worker_timeline

    with searching(tmp_path / "e", n_workers=1) as search:
        search.start(0.0, 0, {})
        search.ready(0.0, 0)
        search.add(10.0, "workers", None, {"n_workers": 2})
        search.start(10.0, 1, {}, slot=1)
        search.ready(10.0, 1)
        search.add(20.0, "workers", None, {"n_workers": 1})
        search.end(20.0, 0, "Completed", 20.0)
        search.end(30.0, 1, "Completed", 20.0)
        search.stop(40.0, "enough")
    experiment = load_experiment(tmp_path / "e")
    data = experiment.search_data()
    timeline = worker_timeline(data)
    assert (data.n_workers, timeline.n_workers) == (2, 2)
    assert timeline.capacity_s == 10 + 2 * 10 + 10 + 10
    assert timeline.shares == pytest.approx((0.8, 0.0, 0.2))
    assert experiment.utilization == pytest.approx(0.8)


def test_utilization_is_at_most_one(tmp_path: Path) -> None:
    with searching(tmp_path / "e", n_workers=1) as search:
        search.start(0.0, 0, {})
        search.ready(1.0, 0)
        search.end(2.0, 0, "Completed", 1.01)
    assert load_experiment(tmp_path / "e").utilization == 1.0


def test_search_data_has_no_void_or_repeated_reports(tmp_path: Path) -> None:
    with searching(tmp_path / "e", resource_attr="epoch") as search:
        search.start(0.0, 0, {"lr": 0.1, "max_epochs": 2})
        search.ready(1.0, 0)
        search.report(2.0, 0, 1, {"epoch": 10, "error": 0.5}, decision="PAUSE")
        search.end(3.0, 0, "Paused", 2.0)
        search.start(4.0, 0, {"lr": 0.1, "max_epochs": 2}, attempt=1)
        search.ready(5.0, 0, attempt=1)
        search.report(6.0, 0, 1, {"epoch": 10, "error": 0.4}, attempt=1, repeated=True)
        search.report(7.0, 0, 2, {"epoch": 20, "error": 0.001}, attempt=1)
        search.end(8.0, 0, "Failed", 3.0, attempt=1, reason=REASON, will_retry=True)
        search.start(9.0, 0, {"lr": 0.1, "max_epochs": 2}, attempt=2, from_iter=1)
        search.report(10.0, 0, 2, {"epoch": 20, "error": 0.3}, attempt=2)
    data = load_experiment(tmp_path / "e").search_data()
    reports = data.reports[["t_s", "resource", "value", "decision"]].tolist()
    assert reports == [(1.0, 10.0, 0.5, "PAUSE"), (9.0, 20.0, 0.3, "CONTINUE")]
    assert data.resource_name == "epoch"


def test_each_hyperparameter_becomes_an_axis_on_its_own_scale(tmp_path: Path) -> None:
    space = {
        "lr": loguniform(0.01, 1),
        "kind": choice(["a", "b"]),
        "width": parameter(randint(1, 1000), when={"kind": "b"}),
        "max_epochs": 2,
    }
    with searching(tmp_path / "e", space=space_to_json(Space(space))) as search:
        search.start(0.0, 0, {"lr": 0.1, "kind": "a", "max_epochs": 2})
        search.start(0.0, 1, {"lr": 7.0, "kind": "b", "width": 500, "max_epochs": 2}, slot=1)  # beyond the space
    rate, kind, width = hyperparameter_axes(read_search(tmp_path / "e").search)
    assert rate.name == "lr"
    assert dict(rate.positions) == pytest.approx({0: 0.5}), "a value beyond the space has no position"
    assert [text for _, text in rate.ticks] == ["0.01", "0.0316", "0.1", "0.316", "1"]
    assert [place for place, _ in rate.ticks] == pytest.approx([0, 0.25, 0.5, 0.75, 1.0])
    assert (kind.ticks, kind.positions) == ([(0.25, "a"), (0.75, "b")], {0: 0.25, 1: 0.75})
    assert [text for _, text in width.ticks][-1] == "1000", "a whole number in full"
    assert dict(width.positions) == pytest.approx({1: 0.5}, abs=0.001), "only where its condition holds"


def test_pareto_front_uses_all_reports_that_count(tmp_path: Path) -> None:
    with searching(tmp_path / "e", objectives=[["error", "min"], ["speed", "max"]]) as search:
        search.start(0.0, 0, {"lr": 0.1, "max_epochs": 2})
        for i, (error, speed) in enumerate([(0.5, 3.0), (0.4, 2.0), (0.6, 2.5), (0.1, math.inf), (0.3, 1.0)]):
            search.report(1.0 + i, 0, i + 1, {"error": error, "speed": speed})
    experiment = load_experiment(tmp_path / "e")
    texts = [text.get_text() for text in experiment.plot_pareto_front().texts]
    assert texts == ["lenet: 3 of 4 reports on the Pareto front, of 1 trial\n1 not finite are left out"]


def test_experiment_is_loaded_by_name_path_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with searching(tmp_path / "home" / "lenet-one"), searching(tmp_path / "here"):
        pass
    assert load_experiment("lenet-one").path == tmp_path / "home" / "lenet-one"
    assert load_experiment("here").path == Path("here")
    assert load_experiment(tmp_path / "here" / "events.jsonl").path == tmp_path / "here"
    assert load_experiment(str(tmp_path / "here")).name == "lenet"


def test_unknown_experiment_name_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no experiment 'lenet': .*home contains no experiments yet"):
        load_experiment("lenet")
    for name in ("lenet-one", "dropout"):
        with searching(tmp_path / "home" / name):
            pass
    with pytest.raises(RecordError, match=r"no experiment 'lenet-on': did you mean lenet-one\?"):
        load_experiment("lenet-on")
    with pytest.raises(
        RecordError, match=r"no experiment 'zzz': .*home contains 2 experiments, for example dropout, lenet-one"
    ):
        load_experiment("zzz")
    with pytest.raises(RecordError, match="no experiment"):
        load_experiment(tmp_path / "nowhere" / "e")


def test_only_tables_import_pandas(experiment: Experiment) -> None:
    program = (
        "import sys; from fanwise.tune.experiment import load_experiment\n"
        f"e = load_experiment({str(experiment.path)!r}); e.best, e.utilization, e.state\n"
        "assert 'pandas' not in sys.modules and 'matplotlib' not in sys.modules and 'torch' not in sys.modules\n"
        "e.results; assert 'pandas' in sys.modules"
    )
    paths = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", program], check=True, env=paths)
