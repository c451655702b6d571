"""The output of `fanwise tune ls | show | rm` for recorded searches, as text and JSON."""

import json
import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from program_runs import Finished
from recorded_search import RecordedSearch

from fanwise.board.experiments import Home
from fanwise.board.views import VIEWS, summary
from fanwise.cli.app import main
from fanwise.plot import workers
from fanwise.plot.data import incumbent_steps
from fanwise.tune import StoppingCriterion, load_experiment
from fanwise.tune.record.lock import LOCK_NAME
from fanwise.tune.record.log import Record
from fanwise.tune.record.overview import read_search
from fanwise.tune.runtime.checkpoint_owner import claim
from fanwise.tune.stopping import limits_of

SPACE = {"x": {"domain": "uniform", "lower": 0.0, "upper": 1.0}}
META = {"metric": "loss", "mode": "min", "n_workers": 2, "seed": 1, "space": SPACE}


@dataclass(frozen=True, slots=True)
class Place:
    """A home with recorded searches, and commands that are typed in this process."""

    home: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def typed(self, *arguments: str) -> Finished:
        self.monkeypatch.setattr(sys, "argv", ["fanwise", "tune", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self.capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Finished(ended.value.code, out, err)

    @contextmanager
    def searching(self, name: str, **meta: Any) -> Iterator[RecordedSearch]:  # Any: JSON
        with Record.create(self.home / name, {**META, "name": name, **meta}) as record:
            yield RecordedSearch(record.append)

    def break_off(self, name: str) -> None:
        """As a killed tuner leaves it: its lock file, which nobody holds."""
        (self.home / name / LOCK_NAME).touch()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    return Place(tmp_path, monkeypatch, capsys)


def write_trials(search: RecordedSearch, number: int, best: int) -> None:
    for trial_id in range(number):
        at_s = float(trial_id)
        search.start(at_s, trial_id, {"x": trial_id / 10})
        search.ready(at_s, trial_id)
        search.report(at_s + 0.5, trial_id, 1, {"loss": 0.001 if trial_id == best else 1.0 + trial_id})
        search.end(at_s + 0.9, trial_id, "Completed", 0.9)
        search.free(at_s + 0.9, trial_id)


def trials_shown(text: str) -> list[int]:
    table = text.partition("worker-time\n")[2].partition(" trials running")[0]
    return [int(line.split()[0]) for line in table.splitlines()[:-1] if line[0] not in "(w"]


def test_a_long_table_is_shortened_unless_all_is_given(place: Place) -> None:
    with place.searching("many") as search:
        write_trials(search, 120, best=7)
        search.finish(121.0, "done")
    few = place.typed("show", "many").out
    assert 7 in trials_shown(few) and len(trials_shown(few)) == 50
    assert "(70 more trials not shown)" in few and "all trials: fanwise tune show many --all\n" in few
    whole = place.typed("show", "many", "--all").out
    assert trials_shown(whole) == list(range(120))
    assert "not shown" not in whole and "best 0.001 for trial-id 7" in whole


def test_the_searcher_and_its_random_fallbacks_are_shown(place: Place) -> None:
    scheduler = {"name": "ASHA", "searcher": {"name": "\x1b[31mTPESearcher"}}
    space = {"x": {"domain": "uniform", "lower": 0.0, "upper": 1.0}}
    with place.searching("e", scheduler=scheduler, space=space) as search:
        search.start(0.0, 0, {"x": 0.5})
        search.start(0.0, 1, {"x": 0.6}, slot=1, fallback=True)
    lines = place.typed("show", "e").out.splitlines()
    assert lines[1] == "searcher \\x1b[31mTPESearcher, scheduler ASHA"
    assert "drawn at random, because the searcher took too long: 1 trial" in lines
    too_late = "drawn at random, because the searcher took too long"
    assert too_late in place.typed("show", "e", "--trial", "1").out.splitlines()
    assert too_late not in place.typed("show", "e", "--trial", "0").out


def test_the_pareto_front_is_shown(place: Place) -> None:
    space = {"x": {"domain": "uniform", "lower": 0.0, "upper": 1.0}}
    with place.searching("e", space=space, objectives=[["loss", "min"], ["size", "min"]]) as search:
        for trial_id, (loss, size) in enumerate([(0.5, 9.0), (0.5, 10.0), (0.25, 20.0)]):
            search.start(0.0, trial_id, {"x": 0.5}, slot=trial_id)
            search.report(1.0, trial_id, 1, {"loss": loss, "size": size})
    lines = place.typed("show", "e").out.splitlines()
    at = lines.index("Pareto front: 2 reports")
    assert lines[at + 1 : at + 3] == [
        "  trial 2, report 1: loss=0.25, size=20",
        "  trial 0, report 1: loss=0.5, size=9",
    ]
    assert not lines[at + 3].startswith("  ")


def test_json_of_an_experiment_has_every_trial_and_no_nan(place: Place) -> None:
    with place.searching("e") as search:
        write_trials(search, 60, best=3)
        search.start(60.0, 60, {"x": 6.0})
        search.report(60.5, 60, 1, {"loss": math.nan})
        search.finish(61.0, "done")
    body = json.loads(place.typed("show", "e", "--json").out, parse_constant=pytest.fail)
    assert (body["state"], body["reason"], body["num_trials"]) == ("finished", "done", 61)
    assert body["best"] == {"value": 0.001, "trial_id": 3, "iter": 1, "config": {"x": 0.3}, "violations": {}}
    assert [trial["trial_id"] for trial in body["trials"]] == list(range(61))
    assert body["trials"][60]["last"] == {"loss": None}


def test_a_trial_is_shown_with_attempts_reports_threads_and_paths(place: Place) -> None:
    with place.searching("e") as search:
        search.start(0.0, 0, {"x": 0.5})
        search.ready(0.25, 0)
        search.report(1.0, 0, 1, {"loss": 0.5}, checkpoint="0-0-1")
        search.report(2.0, 0, 2, {"loss": 0.1})
        failure = {"kind": "exit", "text": "gone", "traceback": "", "last_output": ""}
        search.end(3.0, 0, "Failed", 2.5, reason=failure, will_retry=True)
        search.start(3.0, 0, {}, attempt=1, from_iter=1, checkpoint="0-0-1")
        search.ready(3.5, 0, attempt=1)
        search.report(4.0, 0, 2, {"loss": 0.25}, attempt=1, decision="STOP")
        outcome = {"kind": "returned", "text": "", "threads": ["'saver' in save, train.py:7"]}
        judged = {"action": "judged", "trial": 0, "attempt": 1, "status": "Stopped"}
        search.add(5.0, "ended", 0, {"attempt": 1, "outcome": outcome, "objective_s": 1.5, "actions": [judged]})
        search.finish(6.0, "done")
    checkpoint = place.home / "e" / "checkpoints" / "0-0-1"
    for folder in (checkpoint, place.home / "e" / "trials" / "0", place.home / "e" / "output"):
        folder.mkdir(parents=True)
    (place.home / "e" / "output" / "0-1.out").write_text("hello\n")
    lines = place.typed("show", "e", "--trial", "0").out.splitlines()
    assert lines[:2] == ["trial 0 of e: Stopped", "  x = 0.5"]
    assert "loss: best 0.25 at report 2 of 2; the best of all trials" in lines
    first, second = (line for line in lines if line.startswith("attempt "))
    assert first.startswith(
        "attempt 0: from scratch, on worker 0, started at 0.00 s, objective started at 0.25 s and took"
    )
    assert first.endswith("failed; reports after 1 do not count")
    assert second.startswith("attempt 1: from the checkpoint of report 1, on worker 0, started at 3.00 s")
    assert "  left a thread running: 'saver' in save, train.py:7" in lines
    assert [line for line in lines if line.startswith("  report")] == [
        "  report 1 at 1.00 s: loss=0.5",
        "  report 2 at 4.00 s: loss=0.25  STOP",
    ]
    assert f"checkpoint: {checkpoint}" in lines and f"folder: {place.home}/e/trials/0" in lines
    assert f"log: {place.home}/e/output/0-1.out" in lines and lines[-1] == "hello"
    body = json.loads(place.typed("show", "e", "--trial", "0", "--json").out)
    assert [report["counts"] for report in body["reports"]] == [True, False, True]
    assert [attempt["from_iter"] for attempt in body["attempts"]] == [0, 1]
    checkpoint.rmdir()
    assert f"checkpoint: {checkpoint}, deleted as no longer needed" in place.typed("show", "e", "--trial", "0").out


def test_trials_of_a_killed_tuner_are_shown_as_lost(place: Place) -> None:
    with place.searching("dead") as search:
        write_trials(search, 2, best=1)
        search.start(2.0, 2, {"x": 0.2})
        search.report(2.5, 2, 1, {"loss": 9.0})
    place.break_off("dead")
    shown = place.typed("show", "dead").out
    assert (
        "1 trial lost when the tuner was killed, 2 finished (2 until the end)" in shown
        and "trials running" not in shown
    )
    assert [line.split()[1] for line in shown.splitlines() if line.split()[:1] == ["2"]] == ["Lost"]
    assert place.typed("show", "dead", "--trial", "2").out.startswith("trial 2 of dead: Lost\n")
    assert [trial["status"] for trial in json.loads(place.typed("show", "dead", "--json").out)["trials"]][2] == "Lost"


def test_ls_reads_only_the_summary(place: Place) -> None:
    summary = {
        "num_trials": 1234,
        "num_running": 0,
        "num_paused": 1,
        "num_over": {"Completed": 1200, "Stopped": 30, "Failed": 3},
        "best": [0.125, 77],
        "reason": "done",
        "finished": True,
        "last_s": 60.0,
    }
    with place.searching("good", summary=summary):
        pass
    (place.home / "good" / "events.jsonl").write_bytes(b"not read\n")
    assert "good  finished    1234  loss=0.125 (trial 77)\n" in place.typed("ls").out
    (listed,) = json.loads(place.typed("ls", "--json").out)
    assert (listed["num_completed"], listed["num_stopped"], listed["num_failed"]) == (1200, 30, 3)
    assert listed["best"] == {"value": 0.125, "trial_id": 77, "feasible": True}


def test_ls_ignores_the_summary_of_a_killed_tuner(place: Place) -> None:
    with place.searching("dead", summary={"finished": False}) as search:
        write_trials(search, 3, best=1)
        search.start(3.0, 3, {"x": 0.2})
    place.break_off("dead")
    assert "dead  crashed       4  loss=0.001 (trial 1)\n" in place.typed("ls").out
    (listed,) = json.loads(place.typed("ls", "--json").out)
    assert (listed["num_running"], listed["num_lost"]) == (0, 1)


def test_an_unreadable_experiment_is_listed_with_its_error(place: Place) -> None:
    (place.home / "junk").mkdir()
    (place.home / "junk" / "events.jsonl").write_bytes(b"no record" * 1000)
    (listed,) = json.loads(place.typed("ls", "--json").out)
    assert (listed["name"], listed["state"]) == ("junk", "unreadable")
    assert "it has no meta.json" in listed["error"]


# -- deleting ----------------------------------------------------------------------------------------------------------


def test_rm_deletes_checkpoints_outside_the_experiment(place: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name in ("a", "b"):
        with place.searching(name, id=name, settings={"checkpoints": str(elsewhere)}):
            claim(f"{elsewhere}/{name}", name, place.home / name)
        (elsewhere / name / "0-0-1").mkdir()
    done = place.typed("rm", "a", "--yes")
    assert (done.status, done.out) == (0, f"deleted {place.home}/a\n")
    assert sorted(path.name for path in elsewhere.iterdir()) == ["b"]
    assert sorted(path.name for path in place.home.iterdir()) == ["b", "elsewhere"]


def test_rm_keeps_an_experiment_with_files_of_others(place: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "a" / "0-0-1").mkdir(parents=True)
    with place.searching("a", id="a", settings={"checkpoints": str(elsewhere)}):
        pass
    with place.searching("b", id="b", settings={"checkpoints": str(elsewhere)}):
        claim(f"{elsewhere}/b", "b", place.home / "b")
    (elsewhere / "b" / "0-0-1").mkdir()
    shutil.copytree(place.home / "b", place.home / "copy")
    for name, why in (("a", "it has files of other programs"), ("copy", "is a copy of that")):
        done = place.typed("rm", name, "--yes")
        assert done.status == 1
        assert why in done.err
        assert f"Nothing was deleted. To delete the experiment without them, remove {place.home}/{name} by" in done.err
        assert (place.home / name / "events.jsonl").exists()
        assert (elsewhere / name[0].replace("c", "b") / "0-0-1").exists()
    assert place.typed("rm", "b", "--yes").status == 0
    assert [path.name for path in elsewhere.iterdir()] == ["a"]


@pytest.mark.parametrize(("answer", "is_kept"), [("y\n", False), ("n\n", True), ("\n", True)])
def test_rm_asks_before_deleting(answer: str, is_kept: bool, place: Place) -> None:
    with place.searching("e") as search:
        write_trials(search, 3, best=1)
    place.monkeypatch.setattr("sys.stdin", _typed(answer))
    done = place.typed("rm", "e")
    assert done.status == 0
    assert f"delete {place.home}/e (3 trials) permanently? [y/N]: " in done.out
    assert (place.home / "e").exists() is is_kept
    assert done.out.endswith(f"{'kept' if is_kept else 'deleted'} {place.home}/e\n")


def test_ctrl_c_at_the_question_exits_with_130(place: Place) -> None:
    with place.searching("e"):
        pass

    def interrupted(question: str) -> str:
        raise KeyboardInterrupt

    place.monkeypatch.setattr("builtins.input", interrupted)
    done = place.typed("rm", "e")
    assert done.status == 130
    assert (place.home / "e").exists()


def test_rm_without_an_answer_deletes_nothing(place: Place) -> None:
    with place.searching("e"):
        pass
    place.monkeypatch.setattr("sys.stdin", _typed(""))
    done = place.typed("rm", "e")
    assert done.status == 2 and "there was no answer, so nothing was deleted; --yes deletes without asking" in done.err
    assert (place.home / "e").exists()


def test_rm_refuses_running_and_accepts_unreadable_experiments(place: Place) -> None:
    with place.searching("runs"):
        done = place.typed("rm", "runs", "--yes")
    assert done.status == 1
    assert "the search 'runs' is running: nothing was deleted. End it first: fanwise tune stop runs" in done.err
    (place.home / "junk").mkdir()
    (place.home / "junk" / "events.jsonl").write_bytes(b"no record" * 1000)
    assert place.typed("rm", "junk", "runs", "--yes").status == 0
    assert list(place.home.iterdir()) == []


def test_a_link_to_an_experiment_is_not_followed(place: Place) -> None:
    with place.searching("e"):
        pass
    (place.home / "link").symlink_to(place.home / "e")
    assert "link is not the folder of an experiment: nothing was deleted." in place.typed("rm", "link", "--yes").err
    assert (place.home / "e" / "events.jsonl").exists()


def _typed(text: str) -> Any:  # Any: a file
    import io

    return io.StringIO(text)


@pytest.mark.usefixtures("fonts")
def test_terminal_board_report_and_figures_show_the_same_numbers_of_a_resumed_search(place: Place) -> None:
    stop = limits_of(StoppingCriterion(max_wallclock_time=60))
    with place.searching("twice", n_workers=1, objectives=[["loss", "min"]], stop=stop) as search:
        search.start(0.0, 0, {"x": 0.1})
        search.ready(1.0, 0)
        search.report(6.0, 0, 1, {"loss": 0.5})
        search.end(11.0, 0, "Completed", 10.0)
        search.free(11.0, 0)
        search.finish(11.0, "done")
        search.add(11.0, "resumed", None, {"n_workers": 2, "stop": None})
        for trial_id, slot in ((1, 0), (2, 1)):
            search.start(11.0, trial_id, {"x": 0.2}, slot=slot)
            search.ready(21.0, trial_id)
            search.report(24.0, trial_id, 1, {"loss": 0.25 / trial_id})
        search.end(26.0, 1, "Completed", 5.0)
        search.free(26.0, 1)
        search.stop(31.0, "enough")
        search.end(31.0, 2, "Stopped", 10.0)
        search.free(31.0, 2)
        search.finish(31.0, "enough")
    experiment = load_experiment("twice")
    share = (10 + 5 + 10) / (10 + 2 * 10)  # the ten seconds until the second run's workers were ready do not count
    assert experiment.utilization == pytest.approx(share)
    assert read_search(experiment.path).snapshot().utilization == pytest.approx(share)
    assert json.loads(place.typed("show", "twice", "--json").out)["utilization"] == pytest.approx(share)
    words = "83.3 % (start-up 0.0 %, idle 16.7 %)"
    shown = place.typed("show", "twice").out
    assert f"worker utilization: {words}\n" in shown and "loss: best 0.125 for trial-id 2" in shown
    data = experiment.search_data()
    assert f"worker utilization {words}" in workers(data).axes[0].get_title(loc="left")
    assert experiment.plot().axes[0].get_title(loc="left") == "twice: best loss 0.125 (trial 2)"
    steps = [(5.0, 0.5), (23.0, 0.25), (23.0, 0.125)]
    assert [(step.t_s, step.value) for step in incumbent_steps(data)] == steps
    state = Home(place.home).experiment("twice").state()
    assert VIEWS["workers"](state)["shares"]["busy"] == pytest.approx(share)
    assert [(t_s, value) for t_s, value, _ in VIEWS["curves"](state)["incumbents"]] == steps
    board = summary(state)
    assert board["utilization"] == pytest.approx(share)
    assert (board["best"]["value"], board["best"]["trial"], board["trials"]["total"]) == (0.125, 2, 3)
    assert place.typed("report", "twice", "--out", str(place.home / "twice.html")).status == 0
    report = (place.home / "twice.html").read_text()
    assert "<dt>utilization</dt><dd>83.3 %</dd>" in report and f"worker utilization {words}" in report
    assert '<div class="big">0.125</div>' in report and "trial 2, report 1" in report
    assert "<dt>trials</dt><dd>3 (2 completed, 1 stopped)</dd>" in report
