"""Searches with the ask-and-tell interface, also across kills."""

import math
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from program_runs import run_program

import fanwise
from fanwise.base.errors import ClosedError, RecordError
from fanwise.tune import (
    ASHA,
    FIFO,
    AskedTrial,
    Searcher,
    StoppingCriterion,
    Tuner,
    choice,
    load_experiment,
    open_search,
    replay_experiment,
    uniform,
)
from fanwise.tune.callbacks import TrialEnded, TrialReported
from fanwise.tune.record.event_file import read_events
from fanwise.tune.runtime.control import send_command
from fanwise.tune.schedulers import Decision, Scheduler, Status
from fanwise.tune.searchers import Observation, SuggestContext

SPACE = {"x": uniform(0, 1), "epochs": 4}
LIBRARY = str(Path(fanwise.__file__).parent)


def seeded() -> Scheduler:
    return FIFO(metric="loss", random_seed=0)


def not_none(trial: AskedTrial | None) -> AskedTrial:
    assert trial is not None, "there is a trial to run"
    return trial


def test_ask_and_tell_creates_an_experiment() -> None:
    with open_search(SPACE, "loss", name="mine", random_seed=0) as search:
        for _ in range(3):
            trial = not_none(search.ask())
            assert search.tell(trial, trial.config["x"]) is Status.COMPLETED
        assert search.experiment.state == "running"
    experiment = load_experiment("mine")
    assert (experiment.state, experiment.end_reason) == ("finished", "closed")
    assert list(experiment.trials["status"]) == ["Completed"] * 3
    best = experiment.best
    assert best is not None and best.value == experiment.results["loss"].min() == best.config["x"]
    assert experiment.utilization is None
    experiment.plot_workers()


def test_ask_returns_objects_of_a_choice_also_in_another_process() -> None:
    def space() -> dict[str, object]:
        return {"act": choice([math.sin, math.cos]), "sizes": choice([[64], [64, 64]])}

    with open_search(space(), "loss", name="objects", points_to_evaluate=[{"act": math.cos, "sizes": [64]}]) as search:
        first = not_none(search.ask())
        assert first.config == {"act": math.cos, "sizes": [64]}
        first.config["sizes"].append(1)
        search.tell(first, 0.5)
        search.enqueue({"act": "cos", "sizes": [64]})
    with open_search(space(), "loss", name="objects", points_to_evaluate=[{"act": math.cos, "sizes": [64]}]) as search:
        second = not_none(search.ask())
        assert second.config == {"act": math.cos, "sizes": [64]}
        search.tell(second, 1.0)
    best = load_experiment("objects").best
    assert best is not None and best.config == {"act": "cos", "sizes": "[64]"}
    assert replay_experiment("objects").differences == []
    other_space = {**space(), "sizes": choice([[64], [32]])}
    with pytest.raises(ValueError, match=r"'sizes' in the space: was .*'\[64, 64\]'.*, is .*'\[32\]'"):
        open_search(other_space, "loss", name="objects", points_to_evaluate=[{"act": math.cos, "sizes": [64]}])
    with open_search(space(), "loss", name="warm", warm_start=["objects"]) as search:
        assert not_none(search.ask()).config["act"] in (math.sin, math.cos)


def test_trials_may_be_told_in_any_order() -> None:
    with open_search(SPACE, seeded(), name="many") as search:
        trials = [not_none(search.ask()) for _ in range(20)]
        assert [trial.trial_id for trial in trials] == list(range(20))
        for trial in reversed(trials):
            search.tell(trial, trial.config["x"])
        assert not_none(search.ask()).trial_id == 20, "no trial starts before it is asked for"
    statuses = list(load_experiment("many").trials["status"])
    assert statuses == ["Completed"] * 20 + ["Stopped"]


def test_paused_trial_is_asked_for_again_with_its_checkpoint() -> None:
    scheduler = ASHA(metric="loss", max_t=4, grace_period=1, reduction_factor=2, type="promotion", random_seed=0)
    with open_search(SPACE, scheduler, name="asha") as search:
        resumed = None
        for _ in range(4):
            trial = not_none(search.ask())
            if trial.attempt:
                resumed = trial
                break
            search.report(trial, loss=float(trial.trial_id), checkpoint=f"{trial.trial_id}.pt")
        assert resumed == AskedTrial(0, resumed.config if resumed else {}, 1, 1, "0.pt")
        old = AskedTrial(0, resumed.config, 0)
        with pytest.raises(ValueError, match="trial 0 is not in flight"):
            search.report(old, loss=0.25)
        assert search.report(resumed, loss=0.25) is Decision.PAUSE, "at the next rung, of 2 epochs"
    assert list(load_experiment("asha").results["st_worker_iter"])[-1] == 2


def test_trial_restarted_from_scratch_must_report_before_tell() -> None:
    scheduler = ASHA(metric="loss", max_t=4, grace_period=1, reduction_factor=2, type="promotion", random_seed=0)
    with open_search(SPACE, scheduler) as search:
        trial = not_none(search.ask())
        while not trial.attempt:
            search.report(trial, loss=float(trial.trial_id))
            trial = not_none(search.ask())
        with pytest.raises(ValueError, match="trial 0 has reported nothing"):
            search.tell(trial)


def test_failure_is_recorded_with_its_traceback() -> None:
    with open_search(SPACE, seeded(), name="fails") as search:
        for number in range(4):
            try:
                raise ZeroDivisionError(f"attempt {number}")
            except ZeroDivisionError as error:
                search.fail(not_none(search.ask()), error)
        search.fail(not_none(search.ask()), "the machine is gone")
        search.tell(not_none(search.ask()), 0.5)
    experiment = load_experiment("fails")
    assert list(experiment.trials["status"]) == ["Failed"] * 5 + ["Completed"]
    reason = experiment.reason(1)
    assert reason is not None and reason.text == "ZeroDivisionError: attempt 1"
    assert 'raise ZeroDivisionError(f"attempt {number}")' in (reason.traceback or "")


KILLED = """
import os, signal
from fanwise.tune import FIFO, open_search, uniform
space = {"x": uniform(0, 1), "epochs": 4}
search = open_search(space, FIFO(metric="loss", random_seed=0), name="killed")
done, first, second = search.ask(), search.ask(), search.ask()
search.tell(done, 0.5)
search.report(first, loss=0.25, checkpoint="first.pt")
search.report(first, loss=0.125)
search.report(second, loss=0.75)
last = search.ask()
print(done.config["x"], first.config["x"], second.config["x"], last.config["x"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


FORKED = """
import os, signal, threading
from fanwise.base.errors import ClosedError
from fanwise.tune import open_search, uniform

def held():
    with search._lock:
        has.set()
        done.wait()

with open_search({"x": uniform(0, 1)}, "loss", name="forked", searcher="random") as search:
    has, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=held)
    thread.start()
    has.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        for call in (search.ask, search.close):
            try:
                call()
            except ClosedError as error:
                print(error, flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    done.set()
    thread.join()
    search.tell(search.ask(), 1.0)
"""


def test_calls_in_a_fork_raise_at_once(tmp_path: Path) -> None:
    (tmp_path / "forked.py").write_text(FORKED)
    num_told = run_program(["forked.py"], folder=tmp_path)
    assert num_told.status == 0, num_told.said
    assert num_told.out.count("belongs to the process that this one was forked from") >= 1
    assert num_told.out.endswith("\n0\n")
    assert list(load_experiment("forked").trials["status"]) == ["Completed"]


def test_trials_in_flight_are_asked_for_again_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    killed = run_program(["killed.py"], folder=tmp_path)
    assert killed.status == -signal.SIGKILL, killed.said
    assert load_experiment("killed").state == "crashed"
    xs = [float(word) for word in killed.out.split()]
    with open_search(SPACE, seeded(), name="killed") as search:
        first, second, last, new = (not_none(search.ask()) for _ in range(4))
        assert first == AskedTrial(1, {"x": xs[1], "epochs": 4}, 1, 1, "first.pt")
        assert second == AskedTrial(2, {"x": xs[2], "epochs": 4}, 1, 0, None)
        assert last == AskedTrial(3, {"x": xs[3], "epochs": 4}, 1, 0, None), "it was asked for, and nothing after it"
        assert (new.trial_id, new.attempt) == (4, 0)
        assert new.config["x"] not in xs
        search.tell(first, 0.2)
        search.tell(second, 0.3)
        search.tell(new, 0.4)
    best = load_experiment("killed").best
    assert best is not None and (best.trial_id, best.value) == (1, 0.2), "what followed the checkpoint is void"


def test_trials_in_flight_are_asked_for_again_after_a_limit() -> None:
    stop = StoppingCriterion(max_num_trials_started=2)
    with open_search(SPACE, seeded(), name="closed", stop=stop) as search:
        not_none(search.ask())
        not_none(search.ask())
        assert search.ask() is None and not search.finished
    with open_search(SPACE, seeded(), name="closed") as search:
        assert [not_none(search.ask()).trial_id for _ in range(2)] == [0, 1]
        assert search.ask() is None
    with open_search(SPACE, seeded(), name="closed", stop=StoppingCriterion(max_num_trials_started=3)) as search:
        num_told = [not_none(search.ask()) for _ in range(3)]
        assert [(trial.trial_id, trial.attempt) for trial in num_told] == [(0, 2), (1, 2), (2, 0)]
        for trial in num_told:
            search.tell(trial, 0.5)
        assert search.finished and search.ask() is None


def test_experiment_is_reopened_only_with_equal_settings() -> None:
    with open_search(SPACE, seeded(), name="mine") as search:
        with pytest.raises(RecordError, match="being written by another"):
            open_search(SPACE, seeded(), name="mine")
        search.tell(not_none(search.ask()), 0.5)
    with pytest.raises(ValueError, match=r"'epochs' in the space: was"):
        open_search({**SPACE, "epochs": 5}, seeded(), name="mine")
    with pytest.raises(ValueError, match="scheduler: was"):
        open_search(SPACE, FIFO(metric="error"), name="mine")
    with pytest.raises(ValueError, match=r"open_search\(space, scheduler, name='mine'\)"):
        Tuner.resume("mine")


def test_invalid_reports_are_refused_and_change_nothing() -> None:
    with open_search(SPACE, seeded(), name="mine") as search:
        trial = not_none(search.ask())
        before = len(read_events(search.path))
        with pytest.raises(ValueError, match="but not the scheduler's metric 'loss'"):
            search.report(trial, los=0.5)
        with pytest.raises(ValueError, match="the metric 'loss' must be a number, got 'small' of type str"):
            search.tell(trial, "small")  # type: ignore[arg-type]  # the mistake
        with pytest.raises(TypeError, match=r"trial must be an AskedTrial or its id, got '0'"):
            search.tell("0", 0.5)  # type: ignore[arg-type]  # the mistake
        assert len(read_events(search.path)) == before
        search.tell(trial, 0.5)
        with pytest.raises(ValueError, match="trial 0 is not in flight"):
            search.tell(trial, 0.5)
    with pytest.raises(ClosedError, match="is closed"):
        search.ask()


def test_tell_without_a_report_is_refused() -> None:
    with open_search(SPACE, "loss") as search:
        trial = not_none(search.ask())
        with pytest.raises(ValueError, match=r"trial 0 has reported nothing: .*tell\(trial, value\), or call fail"):
            search.tell(trial)
        search.report(trial, loss=0.5)
        assert search.tell(trial) is Status.COMPLETED


def test_trial_can_be_passed_by_its_id() -> None:
    with open_search(SPACE, "loss") as search:
        search.ask()
        search.ask()
        search.report(1, loss=0.5)
        assert search.tell(1) is Status.COMPLETED
        search.fail(0, "no")
        with pytest.raises(ValueError, match="trial 1 is not in flight"):
            search.tell(1, 0.5)


def test_open_search_takes_several_metrics_and_points() -> None:
    with open_search(SPACE, ["loss", "cost"], mode=["min", "max"], points_to_evaluate=[{"x": 0.25}]) as search:
        trial = not_none(search.ask())
        assert trial.config["x"] == 0.25
        search.tell(trial, {"loss": 0.5, "cost": 3.0})
        assert search.experiment.metadata["objectives"] == [["loss", "min"], ["cost", "max"]]


def test_enqueued_configuration_is_refused_when_no_new_trials_start() -> None:
    with open_search(SPACE, seeded(), name="mine", stop=StoppingCriterion(max_num_trials_started=1)) as search:
        trial = not_none(search.ask())
        refused = "no new trials start: max_num_trials_started=1 reached"
        with pytest.raises(ValueError, match=refused):
            search.enqueue({"x": 0.125})
        search.tell(trial, 0.5)
        with pytest.raises(ValueError, match=refused):
            search.enqueue({"x": 0.125})
    with open_search(SPACE, seeded(), name="mine", stop=StoppingCriterion(max_num_trials_started=2)) as search:
        search.enqueue({"x": 0.125})
        assert not_none(search.ask()).config["x"] == 0.125


def test_callbacks_receive_events_of_ask_and_tell() -> None:
    class Noting:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def on_report(self, event: TrialReported) -> None:
            self.heard.append(f"{event.trial_id} reported {event.values}")

        def on_trial_end(self, event: TrialEnded) -> None:
            self.heard.append(f"{event.trial_id} {event.status}")

    noting = Noting()
    with open_search(SPACE, seeded(), name="mine", callbacks=[noting]) as search:
        search.tell(not_none(search.ask()), 0.5)
    assert noting.heard == ["0 reported {'loss': 0.5}", "0 Completed"]


def test_wrong_callbacks_are_refused_before_a_folder_is_created(home: Path) -> None:
    with pytest.raises(TypeError, match="a callback must be an object with methods"):
        open_search(SPACE, "loss", name="mine", callbacks=[object()])
    assert not (home / "mine").exists()


class Broken(Searcher):
    """Suggests two configurations, then it raises."""

    suggest_timeout_s = 5.0

    def suggest(self, ask: SuggestContext) -> Mapping[str, Any]:
        if ask.number == 2:
            raise LookupError("no more ideas")
        return {"x": 0.5}

    def observe(self, observation: Observation) -> None:
        """Nothing is learnt."""


def test_exception_of_the_searcher_is_raised_by_ask() -> None:
    with open_search(SPACE, FIFO(Broken(), metric="loss"), name="mine") as search:
        search.tell(not_none(search.ask()), 0.5)
        search.tell(not_none(search.ask()), 0.5)
        with pytest.raises(LookupError, match="no more ideas"):
            search.ask()


def test_record_of_ask_and_tell_can_be_replayed() -> None:
    def scheduler() -> Scheduler:
        return ASHA(metric="loss", max_t=4, grace_period=1, reduction_factor=2, type="promotion", random_seed=0)

    for part in range(2):  # closed and reopened
        with open_search(SPACE, scheduler(), name="asha") as search:
            for number in range(12):
                trial = not_none(search.ask())
                if number % 5 == 4:
                    search.fail(trial, "no luck")
                elif number % 5 != 3:  # that one stays in flight
                    search.report(trial, loss=trial.config["x"], checkpoint=f"{part}-{number}")
    replayed = replay_experiment("asha")
    assert replayed.differences == []
    assert replayed.num_suggestions > 5 and replayed.num_actions > 50


def interrupted_at_line(at: int, name: str) -> tuple[int, bool]:
    """Ask, report and tell with a Ctrl-C before the `at`-th executed line of the library.

    Return the number of finished trials, and whether the Ctrl-C was raised.
    """
    lines = num_told = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        if event == "line":
            lines += 1
            if lines == at:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    with suppress(KeyboardInterrupt), open_search(SPACE, "loss", name=name, random_seed=0, searcher="random") as search:
        try:
            sys.settrace(trace)  # type: ignore[arg-type]
            for _ in range(2):
                trial = not_none(search.ask())
                search.report(trial, loss=2.0)
                search.tell(trial, 1.0)
                num_told += 1
        finally:
            sys.settrace(before)
    return num_told, lines >= at


@pytest.mark.parametrize("step", [211, pytest.param(1, marks=pytest.mark.soak)])
def test_search_can_be_reopened_after_ctrl_c_at_any_line(step: int) -> None:
    at = 1
    has_come = True
    while has_come:
        name = f"at-{at}"
        num_told, has_come = interrupted_at_line(at, name)
        experiment = load_experiment(name)
        assert experiment.state == "finished", at
        assert list(experiment.trials["status"]).count("Completed") >= num_told, at
        with open_search(SPACE, "loss", name=name) as search:  # all of it is decided again, and compared
            search.tell(not_none(search.ask()), 0.5)
        at += step
    assert at > 1_000


def test_ask_and_tell_refuses_commands_of_other_processes() -> None:
    with open_search(SPACE, "loss", name="mine") as search:
        with pytest.raises(ClosedError, match=r"the trials of 'mine' are run by a program with the ask-and-tell"):
            send_command(search.experiment.path, "workers", 3)
