"""`python -m fanwise.tune.syne_tune program.py` runs a program that imports syne_tune."""

from pathlib import Path

from fanwise.testing.programs import Finished, run_program

SEARCH = """\
from syne_tune import StoppingCriterion, Tuner
from syne_tune.backend.python_backend import PythonBackend
from syne_tune.config_space import uniform
from syne_tune.experiments import load_experiment
from syne_tune.optimizer.baselines import RandomSearch

def train(x):
    import neighbour
    from syne_tune.report import Reporter
    Reporter()(loss=neighbour.square(x))

space = {"x": uniform(0, 1)}
scheduler, stop = RandomSearch(space, metric="loss"), StoppingCriterion(max_num_trials_started=2)
tuner = Tuner(PythonBackend(train, space), scheduler, stop, 1)
tuner.run()
print("results:", len(load_experiment(tuner.name).results))
"""


def run(folder: Path, text: str, *arguments: str) -> Finished:
    """The program lies in another folder than the one that it runs in."""
    (folder / "book").mkdir(exist_ok=True)
    (folder / "book" / "program.py").write_text(text)
    return run_program(["-W", "error", "-m", "fanwise.tune.syne_tune", "book/program.py", *arguments], folder=folder)


def test_the_program_and_its_trials_find_syne_tune_and_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "neighbour.py").write_text("def square(x): return x * x\n")
    done = run(tmp_path, SEARCH)
    assert done.status == 0, done.said
    assert done.out.endswith("results: 2\n")


def test_it_runs_as_a_program_does(tmp_path: Path) -> None:
    done = run(tmp_path, "import sys\nprint(__name__, __file__, sys.argv)\nsys.exit(3)", "--epochs", "2")
    assert (done.status, done.out) == (3, "__main__ book/program.py ['book/program.py', '--epochs', '2']\n")


def test_the_modules_are_ours(tmp_path: Path) -> None:
    text = """
import syne_tune.backend.python_backend.python_backend, syne_tune.tuner, syne_tune.stopping_criterion
import fanwise.tune.syne_tune as ours
assert syne_tune is ours
assert syne_tune.backend.python_backend.python_backend is ours.backend.python_backend.python_backend
"""
    done = run(tmp_path, text)
    assert (done.status, done.said) == (0, "")


def test_a_module_that_is_not_here_is_named_with_our_way(tmp_path: Path) -> None:
    done = run(tmp_path, "import syne_tune.optimizer.schedulers.hyperband")
    assert done.status == 1
    assert "ImportError: syne_tune.optimizer has no 'schedulers': " in done.err
    assert "fanwise explain from-syne-tune" in done.err


def test_a_program_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    done = run_program(["-m", "fanwise.tune.syne_tune", "nowhere.py"], folder=tmp_path)
    assert done.status == 2
    assert "there is no file 'nowhere.py'" in done.err
