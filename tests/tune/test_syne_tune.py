"""Programs that import syne_tune run on fanwise."""

from pathlib import Path

import pytest
from program_runs import Finished, run_program

from fanwise.tune import Experiment, Tuner, list_experiments
from fanwise.tune.syne_tune import ASHA, PythonBackend, RandomSearch, StoppingCriterion, uniform
from fanwise.tune.syne_tune import Tuner as SyneTuner

SPACE = {"x": uniform(0, 1)}
STOP = StoppingCriterion(max_num_trials_started=2)

SEARCH = """\
from syne_tune import StoppingCriterion, Tuner
from syne_tune.backend.python_backend import PythonBackend
from syne_tune.config_space import uniform
from syne_tune.experiments import load_experiment
from syne_tune.optimizer.baselines import RandomSearch

def train(x):
    import neighbor
    from syne_tune.report import Reporter
    Reporter()(loss=neighbor.square(x))

space = {"x": uniform(0, 1)}
scheduler, stop = RandomSearch(space, metric="loss"), StoppingCriterion(max_num_trials_started=2)
tuner = Tuner(PythonBackend(train, space), scheduler, stop, 1)
tuner.run()
print("results:", len(load_experiment(tuner.name).results))
"""


def objective(x: float) -> None:
    raise AssertionError("nothing runs")


def run(folder: Path, text: str, *arguments: str) -> Finished:
    """Run the program from another folder than the one that it lies in."""
    (folder / "book").mkdir(exist_ok=True)
    (folder / "book" / "program.py").write_text(text)
    return run_program(["-W", "error", "-m", "fanwise.tune.syne_tune", "book/program.py", *arguments], folder=folder)


def test_program_and_trials_import_syne_tune_and_modules_of_the_programs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "neighbor.py").write_text("def square(x): return x * x\n")
    finished = run(tmp_path, SEARCH)
    assert finished.status == 0, finished.said
    assert finished.out.endswith("results: 2\n")
    monkeypatch.syspath_prepend(tmp_path / "book")
    (name,) = list_experiments()
    resumed = Tuner.resume(name, stop=StoppingCriterion(max_num_trials_started=3), quiet=True).run()
    assert isinstance(resumed, Experiment) and len(resumed.results) == 3


def test_program_runs_as_main(tmp_path: Path) -> None:
    finished = run(tmp_path, "import sys\nprint(__name__, __file__, sys.argv)\nsys.exit(3)", "--epochs", "2")
    assert (finished.status, finished.out) == (3, "__main__ book/program.py ['book/program.py', '--epochs', '2']\n")


MISSING = """\
for line in ("from syne_tune.optimizer.baselines import MOBSTER", "import syne_tune.optimizer.schedulers"):
    try:
        exec(line)
    except ImportError as error:
        print(type(error).__name__)
"""


def test_missing_names_and_modules_are_import_errors(tmp_path: Path) -> None:
    assert run(tmp_path, MISSING).out == "ImportError\nModuleNotFoundError\n"


def test_missing_program_is_a_usage_error(tmp_path: Path) -> None:
    finished = run_program(["-m", "fanwise.tune.syne_tune", "nowhere.py"], folder=tmp_path)
    assert finished.status == 2
    assert "there is no file 'nowhere.py'" in finished.err


@pytest.mark.parametrize(("kind", "rule"), [("stopping", "quantile"), ("promotion", "promotion")])
def test_asha_stops_by_the_quantile_rule(kind: str, rule: str) -> None:
    scheduler, _ = ASHA(SPACE, metric="loss", max_t=9, type=kind)
    assert scheduler.describe()["type"] == rule


def test_backend_and_scheduler_must_have_the_same_space() -> None:
    with pytest.raises(ValueError, match="different config_spaces"):
        SyneTuner(PythonBackend(objective, SPACE), RandomSearch({"x": uniform(0, 2)}, metric="loss"), STOP, 1)


def test_unknown_options_and_points_outside_the_space_are_refused() -> None:
    with pytest.raises(TypeError, match="no option 'search_options'"):
        RandomSearch(SPACE, metric="loss", search_options={})
    with pytest.raises(ValueError, match="not in uniform"):
        RandomSearch(SPACE, metric="loss", points_to_evaluate=[{"x": 3.0}])
