"""Every example runs as it stands with smaller constants, and what is said of its parts is true."""

import ast
import re
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import matplotlib.image
import pytest

from fanwise import tune
from fanwise.testing.programs import run_program
from fanwise.tune import Ask, Space, lograndint, uniform

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MAX_LINES = 80

# One row an example: its constants made small. An example without a row fails below.
SHRUNK: dict[str, dict[str, object]] = {
    "async_random_search": {"SECONDS": 6.0, "MAX_EPOCHS": 2, "PRINT_INTERVAL_S": 2.0},
    "autograd": {},
    "data_parallel_scratch": {"EPOCHS": 1},
    "data_parallel": {"EPOCHS": 1},
    "local_searcher": {"SECONDS": 4.0, "MAX_EPOCHS": 1, "REPETITIONS": 1},
    "parameter_server_batched": {"STEPS": 5},
    "pipeline_resnet": {"EPOCHS": 1},
    "rl_cartpole": {"SOLVED": 20.0},
    "rl_cartpole_batched": {"EPISODES": 10},
    "rnn_parameter_server": {"EPOCHS": 2},
    "tensors": {},
}


def with_constants(text: str, constants: dict[str, object]) -> str:
    """The source with other values; every constant has to be there, once."""
    for name, value in constants.items():
        text, count = re.subn(rf"^{name} = [^#\n]+", f"{name} = {value!r} ", text, flags=re.MULTILINE)
        assert count == 1, f"{name} is defined {count} times"
    return text


def run_example(name: str, folder: Path) -> str:
    """Run the shrunk example in `folder`; returns what it printed. Whatever it started ends with it."""
    script = folder / f"{name}.py"
    script.write_text(with_constants((EXAMPLES / script.name).read_text(), SHRUNK[name]))
    done = run_program(["-W", "error", script.name], folder=folder)
    assert done.status == 0, done.said
    return done.said


def assert_is_picture(path: Path) -> None:
    image = matplotlib.image.imread(path)
    height, width = image.shape[:2]
    assert width > 800 and height > 300
    assert image[..., :3].std() > 0.02, "an empty picture"


def test_every_example_is_run_by_a_test() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHRUNK)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_has_no_command_line(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < MAX_LINES
    assert not re.search(r"argparse|sys\.argv|typer", text)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_first_how_long_it_takes_with_its_own_constants(path: Path) -> None:
    tree = ast.parse(path.read_text())
    first_line = (ast.get_docstring(tree) or "").partition("\n")[0]
    said = re.match(r"Takes about (\d+) (seconds|minutes?): ", first_line)
    assert said, first_line
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    constants = {ast.unparse(node.targets[0]): ast.literal_eval(node.value) for node in assigned}
    if "SECONDS" in constants:
        searches = 2 * constants.get("REPETITIONS", 1)  # both examples compare two kinds of search
        assert int(said[1]) == round(searches * constants["SECONDS"] / 60)


def test_the_program_of_the_book_prints_and_draws_what_the_book_does(tmp_path: Path) -> None:
    output = run_example("async_random_search", tmp_path)
    assert output.startswith(
        "Two searches of 6 s each, first a synchronous one; then pictures in async-random-search/.\n"
    )
    assert len(re.findall("master random seed 31415927", output)) == 2
    assert len(re.findall("trial 0 scheduled: learning_rate=0.1, batch_size=128, max_epochs=2", output)) == 2
    assert re.search(r"^ trial_id +status +iter +learning_rate +batch_size +max_epochs.* worker-time$", output, re.M)
    assert (
        len(re.findall(r"\d+ trials running, \d+ finished \(\d+ until the end\), [\d.]+s wallclock-time", output)) > 2
    )
    assert len(re.findall("results are kept in ", output)) == 2
    assert re.search(r"^synchronous: \d+ trials in 6 s, best ", output, re.M)
    assert re.search(r"^asynchronous: \d+ trials in 6 s, best ", output, re.M)
    pictures = sorted(path.name for path in (tmp_path / "async-random-search").iterdir())
    assert pictures == [
        "incumbent.png",
        "learning-curves-asynchronous.png",
        "learning-curves-synchronous.png",
        "workers.png",
    ]
    for name in pictures:
        assert_is_picture(tmp_path / "async-random-search" / name)


def test_a_searcher_of_ones_own_is_compared_with_random_search(tmp_path: Path) -> None:
    output = run_example("local_searcher", tmp_path)
    assert output.startswith("2 searches of 4 s each, then a picture; a line at the end of each:\n")
    for searcher in ("RandomSearcher", "LocalSearcher"):
        assert re.search(rf"^{searcher}, seed 0: \d+ trials, best ", output, re.M)
    assert_is_picture(tmp_path / "local-searcher.png")


def test_data_parallelism_from_scratch_prints_what_the_book_does(tmp_path: Path) -> None:
    output = run_example("data_parallel_scratch", tmp_path)
    assert re.search(r"^b1 weight: \[0\.0, .*0\.0\] \nb1 grad: None$", output, re.M)
    assert "before allreduce: tensor([[1., 1.]]) tensor([[2., 2.]])" in output
    assert "after allreduce: tensor([[3., 3.]]) tensor([[3., 3.]])" in output
    assert re.search(r"scattered:\ntensor\(\[\[0, 1, .* 9\]\]\)\ntensor\(\[\[10, 11, .* 19\]\]\)", output, re.S)
    difference = re.search(r"^1 and 2 devices differ by (\S+), parameters go up to (\S+)$", output, re.M)
    assert difference and float(difference[1]) < 1e-5 * float(difference[2])
    runs = re.findall(r"^train\((.*)\): 0\.\d\d test acc: 0\.\d\d, \d+\.\d sec/epoch on (\[.*\])$", output, re.M)
    assert [run[0] for run in runs[2:]] == ["1, 32, 0.2", "2, 32, 0.2", "2, 64, 0.2", "2, 64, 0.4"]
    assert [len(ast.literal_eval(run[1])) for run in runs[2:]] == [1, 2, 2, 2]


# -- remote calls ------------------------------------------------------------------------------------------------------


def test_an_agent_learns_from_observers_that_call_it_twice_a_step(tmp_path: Path) -> None:
    output = run_example("rl_cartpole", tmp_path)
    assert re.search(r"^Episode 10\tLast reward: \d+\.00\tAverage reward: \d+\.\d\d$", output, re.M)
    solved = re.search(r"^Solved! Running reward is now (\S+): (\d+) episodes, (\d+) steps, (\d+) calls$", output, re.M)
    assert solved and float(solved[1]) > 20.0
    assert int(solved[4]) == 2 * int(solved[3]) > 2 * int(solved[2])


def test_with_one_call_a_step_there_are_about_half_as_many_calls(tmp_path: Path) -> None:
    output = run_example("rl_cartpole_batched", tmp_path)
    episode = re.search(r"^Episode 10\tRewards: \[(\d+)\.0, (\d+)\.0\]\tCalls: (\d+)$", output, re.M)
    assert episode, output
    steps = int(episode[1]) + int(episode[2])  # each step brings a reward of 1
    assert int(episode[3]) == steps + 2  # one more for each observer, with its last reward


def test_an_rnn_trains_on_two_workers(tmp_path: Path) -> None:
    output = run_example("rnn_parameter_server", tmp_path)
    losses = re.findall(r"^Training epoch \d: loss (\S+)$", output, re.M)
    assert len(losses) == 2 and all(1.5 < float(loss) < 4.0 for loss in losses), output


def test_a_parameter_server_steps_once_for_all_trainers(tmp_path: Path) -> None:
    output = run_example("parameter_server_batched", tmp_path)
    assert re.search(r"^5 steps of 2 trainers in \d+\.\d s, test error 0\.\d{3}$", output, re.M), output


def test_a_model_on_two_workers_learns_the_digits(tmp_path: Path) -> None:
    output = run_example("pipeline_resnet", tmp_path)
    epoch = re.search(r"^Epoch 1: test error (\S+), \S+ s$", output, re.M)
    assert epoch and float(epoch[1]) < 0.7, output  # chance is 0.9


def test_an_interrupted_group_ends_with_all_its_processes(tmp_path: Path) -> None:
    script = tmp_path / "rl_cartpole.py"
    script.write_text((EXAMPLES / script.name).read_text())
    done = run_program([script.name], folder=tmp_path, interrupt_after="Episode 10")
    assert done.status == -signal.SIGINT and "KeyboardInterrupt" in done.err
    assert "Solved!" not in done.out


def test_one_network_is_trained_on_any_number_of_devices_with_the_same_bits(tmp_path: Path) -> None:
    output = run_example("data_parallel", tmp_path)
    # 1438 images are 45 batches of 32, each of 4 shards.
    lines = re.findall(r"^test acc: (0\.\d\d), \d+\.\d sec/epoch, (\d+) shards on \[(.*)\]$", output, re.M)
    assert [(line[1], line[2].count("cpu")) for line in lines] == [("180", 1), ("180", 2), ("180", 4)], output
    assert output.endswith("same bits: True\n")


# -- LocalSearcher -----------------------------------------------------------------------------------------------------

SPACE = Space({"width": lograndint(8, 1024), "dropout": uniform(0, 0.95), "lr": uniform(0, 1), "max_epochs": 3})
START = {"width": 100, "dropout": 0.5, "lr": 0.5, "max_epochs": 3}


@pytest.fixture(scope="module")
def local_searcher() -> Callable[[float, int], tune.Searcher]:
    """The class as the example has it, without running the example."""
    tree = ast.parse((EXAMPLES / "local_searcher.py").read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    names: dict[str, Any] = {**vars(tune), "Mapping": dict}  # Any: a module's names
    exec(compile(tree, "local_searcher.py", "exec"), names)
    made: Callable[[float, int], tune.Searcher] = names["LocalSearcher"]
    return made


def changed_names(searcher: tune.Searcher, number: int) -> set[str]:
    config = searcher.suggest(Ask(number, SPACE, Random(f"0/suggest/{number}")))
    assert config is not None
    return {name for name, value in SPACE.check(config).items() if value != START[name]}


def test_a_local_suggestion_changes_one_hyperparameter_of_the_best(
    local_searcher: Callable[[float, int], tune.Searcher],
) -> None:
    searcher = local_searcher(1.0, 0)
    searcher.observe(0, START, 0.1)
    searcher.observe(1, {**START, "width": 9}, 0.2)
    changes = [changed_names(searcher, number) for number in range(100)]
    assert all(len(change) <= 1 for change in changes)
    assert set().union(*changes) == {"width", "dropout", "lr"}


def test_the_first_suggestions_are_random(local_searcher: Callable[[float, int], tune.Searcher]) -> None:
    searcher = local_searcher(1.0, 7)
    searcher.observe(0, START, 0.1)
    changes = [changed_names(searcher, number) for number in range(10)]
    assert [len(change) for change in changes[:7]] == [3] * 7
    assert all(len(change) <= 1 for change in changes[7:])


def test_one_minus_probab_local_of_the_later_suggestions_are_random(
    local_searcher: Callable[[float, int], tune.Searcher],
) -> None:
    searcher = local_searcher(0.75, 0)
    searcher.observe(0, START, 0.1)
    n_random = sum(len(changed_names(searcher, number)) > 1 for number in range(2000))
    assert 0.2 < n_random / 2000 < 0.3


def test_before_any_report_a_suggestion_is_random(local_searcher: Callable[[float, int], tune.Searcher]) -> None:
    assert len(changed_names(local_searcher(1.0, 0), 0)) == 3
