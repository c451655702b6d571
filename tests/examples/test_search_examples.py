"""The examples of searches do what they say, and the searcher of one's own among them too."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanwise import tune
from fanwise.tune import Ask, Observation, Space, lograndint, uniform

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
    assert re.search(r"^ trial_id +status +iter +learning_rate +batch_size +max_epochs.* worker-time$", output, re.M)
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
    output = run_example("local_searcher")
    assert output.startswith("2 searches of 1.5 s each, then a picture; a line at the end of each:\n")
    for searcher in ("RandomSearcher", "LocalSearcher"):
        assert re.search(rf"^{searcher}, seed 0: \d+ trials, best ", output, re.M)
    assert_is_picture(tmp_path / "local-searcher.png")


def test_simulated_searches_are_compared_without_training(run_example: Callable[[str], str]) -> None:
    output = run_example("simulate_asha")
    assert output.startswith("3 searches of 0.5 virtual hours on 20 workers with each scheduler; the error, mean:\n")
    assert re.search(r"^ +3 min +8 min +15 min +30 min +trials +workers busy$", output, re.M)
    for name in ("random search", "ASHA, stopping", "ASHA, promotion"):
        assert re.search(rf"^{name} .*0\.\d{{4}} +\d+ +\d\d\.\d%$", output, re.M)


# -- LocalSearcher -----------------------------------------------------------------------------------------------------

SPACE = Space({"width": lograndint(8, 1024), "dropout": uniform(0, 0.95), "lr": uniform(0, 1), "max_epochs": 3})
START: dict[str, object] = {"width": 100, "dropout": 0.5, "lr": 0.5, "max_epochs": 3}


@pytest.fixture(scope="module")
def local_searcher() -> Callable[[float, int], tune.Searcher]:
    """The class as the example has it, without running the example."""
    tree = ast.parse((EXAMPLES / "local_searcher.py").read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    names: dict[str, Any] = {**vars(tune), "Mapping": dict}  # Any: a module's names
    exec(compile(tree, "local_searcher.py", "exec"), names)
    made: Callable[[float, int], tune.Searcher] = names["LocalSearcher"]
    return made


def seen(trial_id: int, config: dict[str, object], loss: float) -> Observation:
    return Observation(trial_id, config, 1, 1.0, (loss,), {"loss": loss})


def changed_names(searcher: tune.Searcher, number: int) -> set[str]:
    config = searcher.suggest(Ask(number, number, SPACE))
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
