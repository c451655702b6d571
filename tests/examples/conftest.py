"""How the tests run an example: its text as it stands, with smaller constants."""

import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import pytest
from program_runs import LoadedInterpreter

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PAGES = sorted((ROOT / "docs" / "book").glob("*.md"))

QUOTED = re.compile(r'^```text title="examples/(\w+)\.py"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# What differs from run to run: numbers, how trials ended, what is best, and places in the file system.
ENDED = r"Completed|InProgress|Stopped|completed|stopped"
NUMBER = r"-?(?<![\w/])\d[\d.,]*(?:e-?\d+)?s?\b|(?<= )-(?= |$)"
AFTER_REPORTS = re.compile(r"after \d+ reports?, ")
VARIES = re.compile(rf"{ENDED}|Best\(.*?\)|\bNone\b|/\S+|{NUMBER}")

# One row an example: its constants made small. A test sees that no example is without a row.
SHRUNK: dict[str, dict[str, object]] = {
    "allreduce_ways": {"SIZE": 1000, "ROUNDS": 2},
    "asha": {"SECONDS": 3.0, "MAX_EPOCHS": 4, "GRACE_PERIOD, REDUCTION_FACTOR": (1, 2)},
    "async_random_search": {"SECONDS": 2.0, "MAX_EPOCHS": 2, "PRINT_INTERVAL_S": 0.5},
    "compare_searchers": {"WORKERS": (2,), "REPETITIONS": 1, "TRIALS": 10, "MAX_EPOCHS": 1},
    "data_parallel": {"EPOCHS": 1},
    "data_parallel_exercises": {"COUNTS": (1, 2), "RATES": (0.4,), "EPOCHS, SEED": (2, 0)},
    "data_parallel_scratch": {"EPOCHS, SEED": (4, 1)},
    "jax_training": {"TRIALS": 2, "MAX_EPOCHS": 2},
    "launched_processes": {},
    "lightgbm_callback": {"TRIALS": 3, "ITERATIONS": 27},
    "lightning_trainer": {"TRIALS": 2, "MAX_EPOCHS": 2},
    "own_engine": {},
    "own_searcher": {"SECONDS": 1.5, "MAX_EPOCHS": 1, "REPETITIONS": 1},
    "pareto": {"TRIALS": 12, "MAX_EPOCHS": 1, "MAX_ERROR": 0.5},
    "parameter_server_batched": {"STEPS": 5},
    "pause_and_resume": {"KILL_AFTER_S": 3.0, "TRIALS": 6, "MAX_EPOCHS": 2},
    "pipeline_resnet": {"EPOCHS": 1},
    "population_based": {"MAX_EPOCHS": 4, "INTERVAL": 1, "POPULATION": 4},
    "rl_cartpole": {"SOLVED": 20.0},
    "rl_cartpole_batched": {"EPISODES": 10},
    "rnn_parameter_server": {"EPOCHS": 2},
    "sequential_search": {"TRIALS": 3, "EPOCHS": 1},
    "shared_gpu": {"TRIALS": 2, "MAX_EPOCHS": 1},
    "sklearn_pipeline": {"TRIALS": 3, "FOLDS": 2},
    "stream_batches": {"EPOCHS": 1},
    "successive_halving": {"ROUNDS": 1, "PER_ROUND": 4, "R_MIN, R_MAX, ETA": (1, 4, 2)},
    "tensors": {},
    "transformers_trainer": {"TRIALS": 2, "EPOCHS": 3},
    "tune_data_parallel": {"TRIALS": 2, "EPOCHS": 1},
    "workers_1_2_4": {"WORKERS": (1, 2), "REPETITIONS": 1, "TRIALS": 3, "MAX_EPOCHS": 1},
}


def with_constants(text: str, constants: dict[str, object]) -> str:
    """The source with other values; every constant has to be there, once."""
    for name, value in constants.items():
        text, count = re.subn(rf"^{name} = [^#\n]+", f"{name} = {value!r} ", text, flags=re.MULTILINE)
        assert count == 1, f"{name} is defined {count} times"
    return text


@pytest.fixture(scope="session")
def shrunk() -> set[str]:
    """The examples that can be run."""
    return set(SHRUNK)


def shape_of(line: str) -> str:
    """A line of output without what differs from run to run, also in how many numbers and columns it has."""
    words = re.sub(r"(?<=worker|report)s\b", "", VARIES.sub("*", line))
    shape = re.sub(r"\*( \*)+", "*", re.sub(r"[\s,;]+", " ", words).strip())
    return "trial_id" if shape.startswith("trial_id ") else shape


def not_printed(quoted: str, printed: str) -> list[str]:
    """The lines of a page that no line of the output looks like; `...` stands for lines that are left out.

    None on a machine so slow that no trial of a search got to a report before its few seconds were over.
    """
    if AFTER_REPORTS.search(quoted) and not AFTER_REPORTS.search(printed):
        return []
    shapes = {shape_of(line) for line in printed.splitlines()} | {"", "..."}
    return [line for line in quoted.splitlines() if shape_of(line) not in shapes]


@pytest.fixture
def run_example(torch_loaded: LoadedInterpreter, tmp_path: Path) -> Callable[[str], str]:
    """Runs the shrunk example in `tmp_path`; returns what it printed. Whatever it started ends with it."""
    return runs_in(torch_loaded, tmp_path)


def runs_in(loaded: LoadedInterpreter, folder: Path) -> Callable[[str], str]:
    def run(name: str) -> str:
        script = folder / f"{name}.py"
        text = with_constants((EXAMPLES / script.name).read_text(), SHRUNK[name])
        script.write_text(text)
        done = loaded.run(script, folder=folder, forks=True)
        assert done.status == 0, done.said
        for page in PAGES:
            for example, quoted in QUOTED.findall(page.read_text()):
                if example == name:
                    assert not_printed(quoted, done.said) == [], f"{page.name} quotes what {name}.py does not print"
        return done.said

    return run


@pytest.fixture(scope="session")
def assert_is_picture() -> Callable[[Path], None]:
    """That there is something to see in a file."""

    def check(path: Path) -> None:
        image = matplotlib.image.imread(path)
        height, width = image.shape[:2]
        assert width > 800 and height > 300
        assert image[..., :3].std() > 0.02, "an empty picture"

    return check
