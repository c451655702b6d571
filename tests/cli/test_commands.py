"""The command line: a search from two files, and all commands that read its record.

One search is run for the whole file. `fanwise` as installed calls the same `main`, and so do processes here. They are
forks of an interpreter that has loaded the foreign libraries once; what only reads a record or is refused is typed in
this process, which is quicker still.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.image
import pandas as pd
import pytest
from program_runs import Finished, LoadedInterpreter, run_program
from record_edits import edit_events, edit_meta

from fanwise.base.version import VERSION
from fanwise.cli.app import main
from fanwise.tune import load_experiment
from fanwise.tune.record.log import Record

START = "import sys; sys.argv[0] = 'fanwise'; from fanwise.cli import main; main()"
SHOW_LOADED = "import atexit, sys; atexit.register(lambda: print('loaded', *sys.modules)); "
LIBRARIES = ("typer.main", "pydantic.type_adapter", "yaml", "pandas", "matplotlib.pyplot", "cloudpickle")
OBJECTIVE = r"""
from fanwise.tune import report

def train(x, epochs):
    print("hello from", x)
    for epoch in range(1, epochs + 1):
        report(epoch=epoch, loss=(x - 1) ** 2 + 1 / epoch)

def fails(x, epochs):
    print("\x1b[31mred\x07")
    raise RuntimeError("\x1b]0;title\x07boom")
"""
ENDLESS = """
import signal
from fanwise.tune import report

def train(x, epochs):
    report(loss=x)
    signal.pause()
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with train.py and space.yaml, and a home with searches."""

    folder: Path
    scripts: Path
    loaded: LoadedInterpreter

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def fanwise(self, *arguments: str, interrupt_after: str | None = None, before: str = "") -> Finished:
        script = self.scripts / "command.py"
        script.write_text(f"{before}import sys; sys.argv[1:] = {arguments}; {START}")
        environment = {"FANWISE_HOME": str(self.home), "COLUMNS": "100"}
        return self.loaded.run(
            script, folder=self.folder, environment=environment, interrupt_after=interrupt_after, forks=True
        )

    def search(self, function: str, name: str) -> Finished:
        options = ["--space", "space.yaml", "--metric", "loss", "--trials", "4", "--workers", "2", "--seed", "3"]
        return self.fanwise("tune", "run", f"train.py:{function}", "--name", name, *options)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "train.py").write_text(OBJECTIVE)
    (folder / "space.yaml").write_text("x: {uniform: [-1, 1]}\nepochs: 3\n")
    with LoadedInterpreter(*LIBRARIES) as loaded:
        yield Place(folder, tmp_path_factory.mktemp("scripts"), loaded)


@pytest.fixture(scope="module")
def searched(place: Place) -> Finished:
    return place.search("train", "good")


@pytest.fixture(scope="module")
def failed(place: Place) -> Finished:
    return place.search("fails", "bad")


@pytest.fixture
def foreign(place: Place, searched: Finished) -> Iterator[str]:
    """The name of an experiment whose record somebody filled with escape sequences."""
    assert searched.status == 0
    name = "evil\x1b[2J"
    shutil.copytree(place.home / "good", place.home / name)
    edit_meta(place.home / name, name="e\x1b[31mx", metric="e\x1b[31mx")

    def evil(event: dict[str, Any]) -> None:  # Any: JSON
        text = json.dumps(event["body"]).replace('"loss"', '"e\\u001b[31mx"')
        event["body"] = json.loads(text.replace('"epochs": 3', '"epochs": "\\u001b[5m"'))

    edit_events(place.home / name, evil)
    (place.home / name / "output" / "0.out").write_bytes(b"\x1b[2Jgone\n")
    yield name
    shutil.rmtree(place.home / name)


@dataclass(frozen=True, slots=True)
class Typed:
    """Types a command in this process."""

    place: Place
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Finished:
        self.monkeypatch.setattr(sys, "argv", ["fanwise", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self.capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Finished(ended.value.code, out, err)


@pytest.fixture
def typed(
    place: Place, searched: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    assert searched.status == 0
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("FANWISE_HOME", str(place.home))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    return Typed(place, monkeypatch, capsys)


# -- a search and its record -------------------------------------------------------------------------------------------


def test_a_search_prints_its_best_configuration_and_its_folder(searched: Finished, place: Place) -> None:
    assert (searched.status, searched.err) == (0, "")
    assert "experiment good: asynchronous search with 2 workers, master random seed 3" in searched.out
    assert f"results are kept in {place.home}/good" in searched.out
    assert "trial 3 completed: loss=" in searched.out
    assert "best configuration: x=" in searched.out
    assert searched.out.endswith("fanwise tune show good\n")


def test_experiments_are_listed_with_their_best(searched: Finished, typed: Typed, place: Place) -> None:
    (place.home / "junk").mkdir()
    (place.home / "junk" / "events.jsonl").write_bytes(b"no record" * 1000)
    done = typed("tune", "ls")
    shutil.rmtree(place.home / "junk")
    assert (done.status, done.err) == (0, "")
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert lines["good"].split()[1:3] == ["finished", "4"]
    assert "loss=" in lines["good"]
    assert lines["junk"].split()[1:3] == ["unreadable", "-"] and "it has no meta.json" in lines["junk"]


def test_an_empty_list_names_the_folder(tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANWISE_HOME", str(tmp_path / "none"))
    done = typed("tune", "ls")
    assert (done.status, done.out) == (0, f"no experiments in {tmp_path}/none; start one with fanwise tune run\n")


def test_an_experiment_is_shown_with_its_table(searched: Finished, place: Place) -> None:
    done = place.fanwise("tune", "show", "good")
    assert (done.status, done.err) == (0, "")
    table = done.out[done.out.index("Resource summary") : done.out.index("best configuration")]
    # At its end the search looked at the clock a moment later than its last event.
    shown, end = (re.sub(r"[\d.]+s wallclock-time", "", text) for text in (table, searched.out))
    assert shown in end, "the same table as at the end of the search"
    assert f"folder: {place.home}/good" in done.out
    assert done.out.startswith("experiment good: finished (max_num_trials_started=4")
    assert re.search(r"^worker utilization: [\d.]+ % \(start-up [\d.]+ %, idle [\d.]+ %\)$", done.out, re.M)


def test_crashed_and_running_searches_are_distinguished(place: Place) -> None:
    meta = {"name": "e", "metric": "loss", "mode": "min", "n_workers": 1, "space": {}}
    with Record.create(place.home / "half", meta):
        assert place.fanwise("tune", "show", "half").out.startswith("experiment e: running\n")
        running = place.fanwise("tune", "ls").out
    listed = place.fanwise("tune", "ls").out
    assert re.search(r"^half +running +0 ", running, re.M)
    assert re.search(r"^half +crashed +0 ", listed, re.M)
    assert place.fanwise("tune", "show", "half").out.startswith("experiment e: crashed: its tuner was killed")
    shutil.rmtree(place.home / "half")


def test_the_objective_can_be_in_a_package(place: Place) -> None:
    package = place.folder / "project"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "losses.py").write_text("def loss_of(x): return x * x\n")
    text = "from .losses import loss_of\ndef train(x, epochs): return loss_of(x)\n"
    (package / "train.py").write_text(text)
    rest = ["--space", "space.yaml", "--metric", "loss", "--trials", "2", "--workers", "2"]
    done = place.fanwise("tune", "run", "project.train:train", *rest)
    assert (done.status, done.err) == (0, "")
    assert "best configuration: x=" in done.out


@pytest.mark.parametrize("command", ["tune", "demo"])
def test_ctrl_c_keeps_and_shows_the_results_and_exits_with_130(command: str, place: Place) -> None:
    (place.folder / "endless.py").write_text(ENDLESS)
    run = ["run", "endless.py:train", "--space", "space.yaml", "--metric", "loss", "--trials", "9", "--name", "stopped"]
    arguments = ["tune", *run] if command == "tune" else ["demo", "--seconds", "600", "--out", "early"]
    before = SHOW_LOADED if command == "demo" else ""
    done = place.fanwise(*arguments, "--workers", "2", interrupt_after="scheduled", before=before)
    assert (done.status, done.err) == (130, "")
    assert "Ctrl-C: stopping the trials; all results are kept. Ctrl-C again kills them." in done.out
    assert "Resource summary" in done.out and "the search ended: interrupted" in done.out
    if command == "tune":
        assert done.out.endswith("details: fanwise tune show stopped\n")
        assert place.fanwise("tune", "show", "stopped").out.startswith("experiment stopped: finished (interrupted)\n")
    else:
        assert "early/workers.png\n" in done.out
        loaded = set(done.out[done.out.index("\nloaded ") :].split())
        assert "fanwise.cli.demo" in loaded
        assert "torch" not in loaded, "workers import it, not the command"


def test_run_and_resume_print_only_one_json_value(place: Place) -> None:
    options = ["--space", "space.yaml", "--metric", "loss", "--trials", "2", "--workers", "2", "--seed", "3", "--json"]
    done = place.fanwise("tune", "run", "train.py:train", "--name", "json-search", *options)
    assert (done.status, done.err) == (0, "")
    body = json.loads(done.out)
    assert [trial["status"] for trial in body["trials"]] == ["Completed", "Completed"]
    assert body["best"]["config"].keys() == {"x", "epochs"}
    resumed = place.fanwise("tune", "resume", "json-search", "--trials", "3", "--json")
    assert (resumed.status, resumed.err) == (0, "")
    assert len(json.loads(resumed.out)["trials"]) == 3
    assert resumed.out == place.fanwise("tune", "show", "json-search", "--json").out
    shutil.rmtree(place.home / "json-search")


def test_version_is_printed(place: Place) -> None:
    done = place.fanwise("--version")
    assert (done.status, done.out, done.err) == (0, f"fanwise {VERSION}\n", "")


def test_a_trial_is_shown_with_its_output(searched: Finished, typed: Typed, place: Place) -> None:
    done = typed("tune", "show", str(place.home / "good"), "--trial", "2")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("trial 2 of good: Completed\n  x = ")
    assert "--- standard output ---\nhello from " in done.out


def test_figures_are_drawn_into_a_new_folder(searched: Finished, place: Place) -> None:
    done = place.fanwise("tune", "plot", "good", "--out", "some/pictures")
    assert (done.status, done.err) == (0, "")
    names = ["incumbent", "learning-curves", "workers"]
    assert done.out.split() == [f"some/pictures/{name}.png" for name in names]
    assert sorted(path.name for path in (place.folder / "some/pictures").iterdir()) == [f"{n}.png" for n in names]
    for name in names:
        image = matplotlib.image.imread(place.folder / "some/pictures" / f"{name}.png")
        assert image.shape[1] > 800 and image[..., :3].std() > 0.02


def test_figures_are_drawn_as_svg(searched: Finished, place: Place) -> None:
    done = place.fanwise("tune", "plot", "good", "--out", "drawn", "--format", "svg")
    assert (done.status, done.err) == (0, "")
    assert [Path(path).suffix for path in done.out.split()] == [".svg"] * 3
    assert (place.folder / "drawn/workers.svg").read_bytes().startswith(b"<?xml")


def test_several_experiments_are_compared(searched: Finished, place: Place) -> None:
    done = place.fanwise("tune", "plot", "good", str(place.home / "good"), "--out", "both")
    assert (done.status, done.err) == (0, "")
    assert done.out.split() == ["both/incumbent.png", "both/workers.png"]


def test_reports_are_exported_as_csv(searched: Finished, typed: Typed, place: Place) -> None:
    done = typed("tune", "export", "good", "--out", "good.csv")
    assert (done.status, done.out, done.err) == (0, "good.csv\n", "")
    frame = pd.read_csv(place.folder / "good.csv")
    assert len(frame) == 12
    assert {"trial_id", "loss", "config_x", "st_tuner_time"} <= set(frame.columns)


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_search_whose_trials_all_fail_ends_with_the_failure(failed: Finished, place: Place) -> None:
    assert failed.status == 1
    assert failed.err.startswith("error: ")
    assert "boom" in failed.err and "fanwise explain search-failed" in failed.err
    assert "or search again with --max-equal-failures 0 to continue after any failure." in failed.err
    assert "\x1b" not in failed.err and "\x07" not in failed.err


def test_failures_are_shown_with_traceback_and_output(failed: Finished, typed: Typed, place: Place) -> None:
    assert failed.status == 1
    done = typed("tune", "show", "bad")
    assert r"trial 0 failed (exception): RuntimeError: \x1b]0;title\x07boom" in done.out
    assert "details of a failure: fanwise tune show bad --trial 0" in done.out
    trial = typed("tune", "show", "bad", "--trial", "0")
    assert (done.status, trial.status) == (0, 0)
    assert trial.out.count("raise RuntimeError") == 1, "the traceback once"
    assert r"\x1b[31mred" in trial.out
    assert "\x1b" not in done.out + trial.out


def test_control_characters_of_a_record_are_escaped(foreign: str, typed: Typed, place: Place) -> None:
    outputs = [typed("tune", *rest) for rest in (["ls"], ["show", foreign], ["show", foreign, "--trial", "0"])]
    for done in outputs:
        assert (done.status, done.err) == (0, "")
        assert "\x1b" not in done.out
        assert r"\x1b[31m" in done.out, "control characters are shown as escapes"
    assert r"\x1b[2Jgone" in outputs[2].out


def test_optuna_samplers_are_searchers_with_options(place: Place) -> None:
    pytest.importorskip("optuna")
    options = ["--space", "space.yaml", "--metric", "loss", "--trials", "3", "--workers", "1", "--scheduler", "median"]
    settings = ["--option", "n_startup_trials=2", "--option", "suggest_timeout_s=60", "--option", "grace_time=2"]
    searcher = ["--searcher", "optuna:TPESampler", *settings]
    done = place.fanwise("tune", "run", "train.py:train", "--name", "by-optuna", *options, *searcher)
    assert done.status == 0, done.said
    settings = load_experiment(place.home / "by-optuna").metadata["scheduler"]["searcher"]
    assert settings == {
        "name": "OptunaSearcher",
        "sampler": "TPESampler",
        "options": {"n_startup_trials": 2},
        "suggest_timeout_s": 60.0,
    }


def test_a_search_with_two_metrics_prints_the_pareto_front(place: Place) -> None:
    (place.folder / "two.py").write_text("def two(x, epochs): return {'error': x * x, 'cost': -x}\n")
    options = ["--space", "space.yaml", "--metric", "error", "--metric", "cost", "--trials", "4", "--workers", "1"]
    done = place.fanwise("tune", "run", "two.py:two", "--name", "front", *options, "--mode", "min", "--mode", "max")
    assert done.status == 0, done.said
    assert load_experiment(place.home / "front").metadata["objectives"] == [["error", "min"], ["cost", "max"]]
    assert "Pareto front: " in done.out and "best configuration" not in done.out


def test_python_m_fanwise_runs_the_command(place: Place, searched: Finished) -> None:
    environment = {"FANWISE_HOME": str(place.home)}
    done = run_program(
        ["-m", "fanwise", "tune", "replay", "good", "--json"], folder=place.folder, environment=environment
    )
    assert done.status == 0, done.said
    assert json.loads(done.out)["num_differences"] == 0


COMMANDS = [
    *((name,) for name in ("demo", "board", "devices", "doctor", "explain", "secret", "join")),
    *(("tune", name) for name in ("run", "resume", "ls", "show", "watch", "stop", "pause", "unpause")),
    *(("tune", name) for name in ("enqueue", "workers", "rm", "plot", "importance", "export", "report", "replay")),
]


def test_the_help_of_every_command_has_an_example(typed: Typed) -> None:
    listed = {
        line.split()[0] for line in typed("tune", "--help").out.partition("Commands:")[2].splitlines()[1:-2] if line
    }
    assert listed == {command[1] for command in COMMANDS if command[0] == "tune"}
    for command in COMMANDS:
        done = typed(*command, "--help")
        assert done.status == 0
        assert f"Example:\n      fanwise {' '.join(command)}" in done.out.replace("Examples:", "Example:")


def test_the_guide_lists_every_command_and_those_with_json(typed: Typed, repository: Path) -> None:
    rows = re.findall(r"^\| `fanwise ([a-z ]+)` \| [^|]+ \| (yes)? *\|$", page_of_commands(repository), re.MULTILINE)
    assert sorted(tuple(command.split()) for command, _ in rows) == sorted(COMMANDS)
    for command, has_json in rows:
        assert ("--json" in typed(*command.split(), "--help").out) == (has_json == "yes"), command


def page_of_commands(repository: Path) -> str:
    return (repository / "docs" / "guides" / "command-line.md").read_text()


def test_summaries_fit_into_the_list_of_commands(typed: Typed) -> None:
    for listing in (typed("--help"), typed("tune", "--help")):
        lines = listing.out.partition("Commands:")[2].partition("\n\n")[0].strip().splitlines()
        assert len(lines) >= 4 and all(re.fullmatch(r" *[a-z]+ +[A-Z].*[^.]\.", line) for line in lines), lines


def test_help_imports_no_heavy_library(place: Place) -> None:
    show = "import atexit, sys; atexit.register(lambda: print('loaded', *sys.modules)); "
    done = run_program(["-c", show + START, "--help"], folder=place.folder)
    assert done.status == 0
    help_text, _, loaded = done.out.partition("loaded ")
    assert all(command in help_text for command in ("demo", "devices", "tune"))
    heavy = {"torch", "numpy", "pandas", "matplotlib", "yaml", "cloudpickle", "fanwise.tune", "fanwise.pool"}
    assert set(loaded.split()) & heavy == set()
    assert "fanwise.cli.app" in loaded.split()


# -- bad input ---------------------------------------------------------------------------------------------------------

RUN = ("tune", "run", "train.py:train", "--space", "space.yaml", "--metric", "loss", "--trials", "1")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("tune", "show", "goood"), 1, "There is no experiment 'goood': did you mean good?"),
        (
            ("tune", "show", "."),
            1,
            ". is not an experiment: the folder has no events.jsonl. See: fanwise explain record",
        ),
        (("tune", "show", "good", "--trial", "77"), 1, "experiment 'good' has no trial 77; its trials are 0 to 3"),
        (("tune", "show", "good", "--trial", "x"), 2, "Invalid value for '--trial'"),
        (("tune", "show"), 2, "Missing argument 'NAME'"),
        (
            ("tune", "plot", "good", "--out", "train.py"),
            1,
            "--out 'train.py' is not a folder that can be written to: ",
        ),
        (
            ("tune", "plot", "good", "--out", "/proc/none"),
            1,
            "--out '/proc/none' is not a folder that can be written to",
        ),
        (
            ("tune", "export", "good", "--out", "no/where.csv"),
            1,
            "--out 'no/where.csv' cannot be written: No such file or directory",
        ),
        (("tune", "export", "good"), 2, "Missing option '--out'"),
        (("tune", "export", "none", "--out", "none.csv"), 1, "There is no experiment 'none'"),
        (("tune", "report", "good", "--out", "x.pdf"), 2, "must end in .html"),
        ((*RUN, "--mode", "foo"), 2, "mode must be 'min' or 'max' (or one of them for each metric), got 'foo'"),
        (RUN[:-2], 2, "--seconds or --trials is required"),
        (("tune", "run", "none.py:f", *RUN[3:-2]), 2, "there is no file 'none.py'"),
        ((*RUN[:-2], "--space", "none.yaml"), 2, "the space file 'none.yaml' cannot be read"),
        ((*RUN, "--seconds", "-1"), 2, "Invalid value for '--seconds': must be a number above 0, got -1"),
        ((*RUN, "--devices-per-trial", "nan"), 2, "'--devices-per-trial': must be a number above 0, got nan"),
        ((*RUN, "--trial-timeout", "0"), 2, "'--trial-timeout': must be a number above 0, got 0"),
        ((*RUN, "--trials", "0"), 2, "Invalid value for '--trials'"),
        ((*RUN, "--name", "../up"), 2, "'../up' is not a valid experiment name."),
        ((*RUN, "--name", "good"), 1, "resume it with fanwise tune resume good"),
        ((*RUN, "--metrics", "x"), 2, "No such option: --metrics"),
        ((*RUN, "--zzz", "x"), 2, "No such option: --zzz"),
        (
            ("tune", "plot", "good", "--format", "jpg"),
            2,
            "error: Invalid value for '--format': 'jpg' is not one of 'png', 'svg', 'pdf'",
        ),
        (("tune", "run", "no.such:f", *RUN[3:]), 2, "there is no file and no module 'no.such'"),
        (("tune", "run", "none.py:f", *RUN[3:]), 2, "there is no file 'none.py'"),
        (("tune", "run", "train.py:trian", *RUN[3:]), 2, "train.py has no function 'trian'; did you mean 'train'?"),
        ((*RUN, "--space", "none.yaml"), 2, "the space file 'none.yaml' cannot be read"),
        ((*RUN, "--space", "train.py"), 2, "train.py is not YAML"),
        ((*RUN, "--constraint", "loss < 5"), 2, "the constraint 'loss < 5' is not of the form metric <= number"),
        ((*RUN, "--metric", "cost", "--mode", "min", "--mode", "max", "--mode", "min"), 2, "got 3 for 2"),
        (
            (*RUN, "--metric", "cost", "--scheduler", "asha", "--option", "max_t=9"),
            2,
            "ASHA needs one metric, got ['loss', 'cost']. For several metrics, use MOASHA",
        ),
        ((*RUN, "--searcher", "tpe", "--scheduler", "bohb"), 2, "bohb has its own searcher: omit --searcher"),
        ((*RUN, "--searcher", "optuna:GridSampler"), 2, "missing 1 required positional argument: 'search_space'"),
        (("tune", "export", "good", "--out", "x.xyz"), 2, "the file must end in .csv, .json, .parquet, .sqlite"),
        (
            ("demo", "--data", "cifar"),
            2,
            "'cifar' is not one of 'digits', 'fashion-mnist'",
        ),
        (("demo", "--seconds", "0"), 2, "Invalid value for '--seconds'"),
        (("demo", "--out", "train.py"), 1, "--out 'train.py' is not a folder that can be written to"),
        (
            (*RUN, "--scheduler", "ashaa"),
            2,
            "'ashaa' is not one of 'fifo', 'asha', 'halving', 'hyperband', 'bohb', 'median', 'pbt', 'moasha'",
        ),
        ((*RUN, "--searcher", "gird"), 2, "did you mean 'grid'?"),
        ((*RUN, "--searcher", "gird"), 2, "--searcher must be one of random, grid,"),
        (
            (*RUN, "--searcher", "optuna:TPESample"),
            2,
            "--searcher 'optuna:TPESample': optuna.samplers has no 'TPESample'; did you mean 'TPESampler'?",
        ),
        (
            (*RUN, "--searcher", "optuna:TPESampler", "--option", "n_startup=3"),
            2,
            "optuna:TPESampler and fifo have no option 'n_startup'; did you mean 'n_startup_trials'?",
        ),
        ((*RUN, "--option", "max_t"), 2, "--option must be key=value, e.g. learning_rate=0.1, got 'max_t'"),
        ((*RUN, "--option", "max_tt=3", "--scheduler", "asha"), 2, "have no option 'max_tt'; did you mean 'max_t'?"),
        ((*RUN, "--option", "metric=x"), 2, "use --metric instead of --option metric=..."),
        ((*RUN, "--option", "max_t=1", "--option", "max_t=2"), 2, "--option 'max_t' is given twice"),
        ((*RUN, "--scheduler", "pbt"), 2, "pbt needs --option perturbation_interval=..."),
        ((*RUN, "--scheduler", "asha", "--option", "max_t=0"), 2, "max_t"),
        (
            ("tune", "stop", "good"),
            1,
            "is not running: it has finished (max_num_trials_started=4 reached). Resume it with: ",
        ),
        (("tune", "watch", "good"), 1, "the search 'good' is not running"),
        (("tune", "pause", "good"), 2, "Missing option '--trial'"),
        (("tune", "enqueue", "good", "x=0.5"), 1, "fanwise tune resume good"),
        (("tune", "workers", "good", "2"), 1, "fanwise tune resume good"),
        (("tune", "workers", "good", "two"), 2, "valid integer"),
        (("tune", "enqueue", "good", "x"), 2, "a hyperparameter must be key=value"),
        (("tune", "enqueue", "good", "z=1"), 1, "'z' is not in the space"),
        (("tune", "enqueue", "good", "x=3"), 1, "x = 3 is not in uniform(-1.0, 1.0)"),
        (("tune", "rm", "none", "--yes"), 1, "There is no experiment 'none'"),
        (("tune", "rm", ".", "--yes"), 1, ". is not the folder of an experiment: nothing was deleted."),
        (("tune", "resume", "none"), 1, "There is no experiment 'none'"),
        (("tune", "resume", "good"), 2, "--trials above 4: it has started 4 trials, and the limit is 4"),
        (
            ("tune", "resume", "good", "--trials", "2"),
            2,
            "--trials above 4: it has started 4 trials, and the limit is 2",
        ),
        (("tune", "resume", "good", "--trials", "9", "--seconds", "0.01"), 2, "To resume it, give --seconds above "),
        (("tune", "run", "train.py", *RUN[3:]), 2, "the objective must be FILE:FUNCTION, e.g. train.py:train"),
        (("dmeo",), 2, "No such command 'dmeo'"),
        (("board", "--host", "203.0.113.9", "--port", "0"), 1, "This machine does not have that address"),
        (("secret", "--file", "no/such"), 1, "the secret cannot be written to 'no/such': No such file or directory."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_prints_one_paragraph_and_creates_nothing(
    arguments: tuple[str, ...], status: int, message: str, typed: Typed
) -> None:
    before = sorted(typed.place.folder.rglob("*"))
    done = typed(*arguments)
    assert (done.status, done.out) == (status, "")
    assert done.err.startswith("error: ") and message in done.err
    assert "Traceback" not in done.err and "\n\n" not in done.err.rstrip("\n")
    assert sorted(typed.place.folder.rglob("*")) == before


@pytest.mark.parametrize("command", [("ls",), ("show", "good")])
def test_a_home_that_is_not_a_folder_is_an_error(command: tuple[str, ...], typed: Typed) -> None:
    typed.monkeypatch.setenv("FANWISE_HOME", str(typed.place.folder / "train.py"))
    done = typed("tune", *command)
    assert done.status == 1 and "train.py" in done.err and done.err.count("\n") == 1


def test_errors_of_the_system_name_the_path_and_a_solution(typed: Typed) -> None:
    def refuses(name: str) -> None:
        raise PermissionError(13, "Permission denied", "/home/other/fanwise")

    typed.monkeypatch.setattr("fanwise.cli.showing.load_experiment", refuses)
    message = typed("tune", "show", "good").err
    assert message == (
        "error: /home/other/fanwise: Permission denied. Set FANWISE_HOME to use another folder for experiments.\n"
    )


@pytest.mark.parametrize("arguments", [("-h",), ("tune", "-h"), ("tune", "show", "-h")])
def test_help_has_a_short_option(arguments: tuple[str, ...], typed: Typed) -> None:
    assert typed(*arguments).out == typed(*arguments[:-1], "--help").out


def test_arguments_that_do_not_fit_the_space_are_named(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "y.yaml").write_text("y: {uniform: [0, 1]}\nepochs: 3\n")
    done = typed(*RUN, "--space", str(tmp_path / "y.yaml"))
    assert done.status == 2
    assert "train(x, epochs) does not fit the space" in done.err and "'x'" in done.err and "'y'" in done.err


@pytest.mark.parametrize("arguments", [("--debug", "tune", "show", "none"), ("tune", "show", "none", "--debug")])
def test_debug_shows_the_traceback(arguments: tuple[str, ...], place: Place) -> None:
    done = place.fanwise(*arguments)
    assert done.status == 1
    assert done.err.startswith("Traceback") and "in load_experiment" in done.err


@pytest.mark.parametrize("arguments", [(), ("tune",)])
def test_a_group_without_a_command_shows_its_help(arguments: tuple[str, ...], typed: Typed) -> None:
    done = typed(*arguments)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("Usage: ")


def test_devices_are_shown(typed: Typed) -> None:
    done = typed("devices")
    assert done.status == 0
    assert done.out.startswith("CPUs ") and "GiB" in done.out and "GPU" in done.out
    assert set(json.loads(typed("devices", "--json").out)) == {"cpus", "memory_bytes", "gpus", "notes"}


def test_unexpected_errors_mention_debug(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise KeyError("x")

    monkeypatch.setattr("fanwise.cli.doctor.find_machine", broken)
    done = typed("devices")
    assert done.status == 1
    assert done.err == "error: 'x'\n(KeyError; `fanwise --debug ...` shows the traceback)\n"
