"""The examples of searches do what they say, and the searcher of one's own among them too."""

import ast
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanwise import tune
from fanwise.tune import Observation, Space, SuggestContext, lograndint, uniform

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_program_of_the_book_prints_and_draws_what_the_book_does(
    run_example: Callable[[str], str], assert_is_picture: Callable[[Path], None], tmp_path: Path
) -> None:
    output = run_example("async_random_search")
    assert output.startswith(
        "Two searches of 2 s each, first a synchronous one; then pictures in async-random-search/.\n"
    )
    assert len(re.findall("master random seed 31415927", output)) == 2
    assert len(re.findall("trial 0 scheduled: learning_rate=0.1, batch_size=128, max_epochs=2", output)) == 2
    assert re.search(r"^ *trial_id +status +iter +learning_rate +batch_size +max_epochs.* worker-time$", output, re.M)
    assert (
        len(re.findall(r"\d+ trials running, \d+ finished \(\d+ until the end\), [\d.]+s wallclock-time", output)) > 2
    )
    assert len(re.findall("results are kept in ", output)) == 2
    assert re.search(r"^synchronous: \d+ trials in 2 s, best ", output, re.M)
    assert re.search(r"^asynchronous: \d+ trials in 2 s, best ", output, re.M)
    pictures = sorted(path.name for path in (tmp_path / "async-random-search").iterdir())
    assert pictures == [
        "incumbent.png",
        "learning-curves-asynchronous.png",
        "learning-curves-synchronous.png",
        "workers.png",
    ]
    for name in pictures:
        assert_is_picture(tmp_path / "async-random-search" / name)


def test_a_searcher_of_ones_own_is_compared_with_random_search(
    run_example: Callable[[str], str], assert_is_picture: Callable[[Path], None], tmp_path: Path
) -> None:
    output = run_example("own_searcher")
    assert output.startswith("2 searches of 1.5 s each, then a picture; a line at the end of each:\n")
    for searcher in ("RandomSearcher", "LocalSearcher"):
        assert re.search(rf"^{searcher}, seed 0: \d+ trials, best ", output, re.M)
    assert_is_picture(tmp_path / "own-searcher.png")


def test_one_trial_after_another_makes_the_incumbent(
    run_example: Callable[[str], str], assert_is_picture: Callable[[Path], None], tmp_path: Path
) -> None:
    output = run_example("sequential_search")
    rows = [line.split() for line in output.splitlines() if re.match(r"[012] +\d", line)]
    assert rows[0][1:3] == ["0.100000", "128"], "the configuration that is given comes first"
    errors, incumbents = ([float(row[column]) for row in rows] for column in (3, 5))
    assert incumbents == [min(errors[: number + 1]) for number in range(3)]
    assert_is_picture(tmp_path / "incumbent.png")


def test_the_same_search_runs_with_more_workers(
    run_example: Callable[[str], str], assert_is_picture: Callable[[Path], None], tmp_path: Path
) -> None:
    output = run_example("workers_1_2_4")
    assert re.search(r"^n_workers=1: \d+\.\d s for 3 trials, 1.00 times as fast$", output, re.M)
    assert re.search(r"^n_workers=2: \d+\.\d s for 3 trials, \d+\.\d\d times as fast$", output, re.M)
    assert_is_picture(tmp_path / "workers-1-2-4.png")


def test_random_search_is_compared_with_bayesian_optimization(
    run_example: Callable[[str], str], assert_is_picture: Callable[[Path], None], tmp_path: Path
) -> None:
    output = run_example("compare_searchers")
    assert output.startswith("2 searches of 10 trials, then a picture.\n")
    for name in ("random search", "Bayesian optimization"):
        assert re.search(rf"^{name}, 2 workers: best errors 0\.\d{{4}}$", output, re.M)
    assert_is_picture(tmp_path / "compare-searchers.png")


def test_two_objectives_have_a_front_and_a_hypervolume(
    run_example: Callable[[str], str], assert_is_picture: Callable[[Path], None], tmp_path: Path
) -> None:
    output = run_example("pareto")
    assert output.startswith("2 searches of 12 trials, then a picture.\n")
    for name in ("random search", "Bayesian optimization"):
        assert re.search(rf"^{name}: \d+ of 12 trials on the front, area \d\.\d{{3}}$", output, re.M)
    points = [line.split() for line in output.splitlines() if re.match(r" +0\.\d{4} +\d+   trial \d+$", line)]
    assert points, "one epoch is enough for some networks"
    assert all(float(error) <= 0.5 for error, *_ in points), "whatever violates the constraint is on no front"
    assert_is_picture(tmp_path / "pareto-front.png")


def test_successive_halving_trains_no_epoch_twice(
    run_example: Callable[[str], str], assert_is_picture: Callable[[Path], None], tmp_path: Path
) -> None:
    output = run_example("successive_halving")
    counts = {epoch: int(n) for epoch, n in re.findall(r"^epoch +(\d+): (\d+) trials$", output, re.M)}
    assert counts == {"1": 4, "2": 2, "3": 1, "4": 1}, "4 trials to level 1, 2 to level 2, 1 to level 4"
    assert "\n8 epochs in 1 rounds; best Best(" in output
    assert_is_picture(tmp_path / "successive-halving.png")


def test_asha_tries_more_than_random_search_does(
    run_example: Callable[[str], str], assert_is_picture: Callable[[Path], None], tmp_path: Path
) -> None:
    output = run_example("asha")
    trials = re.findall(r"^(random search|ASHA): (\d+) trials, (\d+) epochs, best ", output, re.M)
    assert [name for name, _, _ in trials] == ["random search", "ASHA"]
    assert len(re.findall(r"^trial \d+ stopped: validation_error=\S+ after [12] reports?,", output, re.M)) > 2
    for name in ("asha-learning-curves", "asha-incumbents"):
        assert_is_picture(tmp_path / f"{name}.png")


def test_networks_of_a_population_go_on_from_each_other(
    run_example: Callable[[str], str], assert_is_picture: Callable[[Path], None], tmp_path: Path
) -> None:
    output = run_example("population_based")
    assert output.startswith("4 networks for 4 epochs on 2 workers; then a picture.\n")
    assert re.search(r"^trial \d+ scheduled, a clone of trial \d+: ", output, re.M)
    assert re.search(r"^\d+ trials; the best error is 0\.\d{4}\. How that network was trained:$", output, re.M)
    line = re.findall(r"^  from epoch +(\d+) as trial \d+: learning rate 0\.\d+, weight decay 0\.\d+$", output, re.M)
    assert line[0] == "1" and line == sorted(line)
    assert_is_picture(tmp_path / "population-based.png")


def test_a_search_that_is_killed_goes_on_and_starts_no_trial_with_a_checkpoint_from_scratch(
    run_example: Callable[[str], str], assert_is_picture: Callable[[Path], None], tmp_path: Path
) -> None:
    output = run_example("pause_and_resume")
    assert output.startswith("A search with 2 workers, which is killed after 3 s.\n")
    assert re.search(r"^crashed: \d+ trials? and \d+ epochs are on record\. It goes on:$", output, re.M)
    assert re.search(r"^experiment .*, resumed: asynchronous search with 3 workers", output, re.M)
    assert re.search(r"^trials were resumed \d+ times; 6 trials, \d+ epochs$", output, re.M)
    assert_is_picture(tmp_path / "pause-and-resume.png")


# -- LocalSearcher -----------------------------------------------------------------------------------------------------

SPACE = Space({"width": lograndint(8, 1024), "dropout": uniform(0, 0.95), "lr": uniform(0, 1), "max_epochs": 3})
START: dict[str, object] = {"width": 100, "dropout": 0.5, "lr": 0.5, "max_epochs": 3}


@pytest.fixture(scope="module")
def local_searcher() -> Callable[[float, int], tune.Searcher]:
    """The class as the example has it, without running the example."""
    tree = ast.parse((EXAMPLES / "own_searcher.py").read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    names: dict[str, Any] = {**vars(tune), "Mapping": dict}  # Any: a module's names
    exec(compile(tree, "own_searcher.py", "exec"), names)
    made: Callable[[float, int], tune.Searcher] = names["LocalSearcher"]
    return made


def seen(trial_id: int, config: dict[str, object], loss: float) -> Observation:
    return Observation(trial_id, config, 1, 1.0, (loss,), {"loss": loss})


def changed_names(searcher: tune.Searcher, number: int) -> set[str]:
    config = searcher.suggest(SuggestContext(number, number, SPACE))
    assert config is not None
    return {name for name, value in SPACE.check(config).items() if value != START[name]}


def test_a_local_suggestion_changes_one_hyperparameter_of_the_best(
    local_searcher: Callable[[float, int], tune.Searcher],
) -> None:
    searcher = local_searcher(1.0, 0)
    searcher.observe(seen(0, START, 0.1))
    searcher.observe(seen(1, {**START, "width": 9}, 0.2))
    changes = [changed_names(searcher, number) for number in range(100)]
    assert all(len(change) <= 1 for change in changes)
    assert set().union(*changes) == {"width", "dropout", "lr"}


def test_the_first_suggestions_are_random(local_searcher: Callable[[float, int], tune.Searcher]) -> None:
    searcher = local_searcher(1.0, 7)
    searcher.observe(seen(0, START, 0.1))
    changes = [changed_names(searcher, number) for number in range(10)]
    assert [len(change) for change in changes[:7]] == [3] * 7
    assert all(len(change) <= 1 for change in changes[7:])


def test_one_minus_probab_local_of_the_later_suggestions_are_random(
    local_searcher: Callable[[float, int], tune.Searcher],
) -> None:
    searcher = local_searcher(0.75, 0)
    searcher.observe(seen(0, START, 0.1))
    n_random = sum(len(changed_names(searcher, number)) > 1 for number in range(2000))
    assert 0.2 < n_random / 2000 < 0.3


def test_before_any_report_a_suggestion_is_random(local_searcher: Callable[[float, int], tune.Searcher]) -> None:
    assert len(changed_names(local_searcher(1.0, 0), 0)) == 3


# -- with other libraries ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("jax_training", "jax"),
        ("lightgbm_callback", "lightgbm"),
        ("lightning_trainer", "lightning"),
        ("shared_gpu", "torch"),
        ("sklearn_pipeline", "sklearn"),
        ("transformers_trainer", "transformers"),
    ],
)
def test_a_search_with_another_library_prints_its_best_trial(
    name: str, library: str, run_example: Callable[[str], str]
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    output = run_example(name)
    best = re.search(r"^best: Best\(trial_id=\d, value=(\d\.\d+(?:e-\d+)?), config=\{.*\}, iter=\d+\)$", output, re.M)
    assert best and 0 <= float(best[1]) < 1.0, output
    assert " failed" not in output
