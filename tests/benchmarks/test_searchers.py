"""What benchmarks/searchers.py computes, on numbers made by hand, and that a run ends with tables and a figure."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from searchers_parts.methods import METHODS
from searchers_parts.regret import Duels, Run, mean_regrets, regrets
from searchers_parts.runs import RunFile, Settings
from searchers_parts.shown import MARKS, groups, tables_of, write_page
from searchers_parts.tasks import Task, of_csv

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "searchers.py"


def run(method: str, *, table: str = "t", seed: int = 0, losses: tuple[float, ...] = (0.5,)) -> Run:
    """Five trainings of two virtual seconds each on a table whose best loss is -1 and whose median one is 3."""
    times_s = [2.0 * (place + 1) for place in range(len(losses))]
    return Run(table, method, seed, 5, 10.0, -1.0, 3.0, times_s, losses, trials=5, suggest_ms=[1.0])


def test_regret_is_0_at_the_best_value_of_the_table_and_1_at_the_median() -> None:
    one = run("a", losses=(3.0, 1.0, -1.0))
    assert [one.regret(trainings) for trainings in (1, 1.99, 2, 3, 5)] == [1.0, 1.0, 0.5, 0.0, 0.0]


def test_before_the_first_report_regret_is_that_of_the_median() -> None:
    assert run("a", losses=(-1.0,)).regret(0.5) == 1.0


def test_a_loss_above_the_median_is_a_regret_above_1() -> None:
    assert run("a", losses=(7.0,)).regret(5) == 2.0


def test_ranks_count_the_better_ones_and_half_of_the_equal_ones() -> None:
    runs = [run("a", losses=(0.0,)), run("b", losses=(1.0,)), run("c", losses=(1.0,)), run("d", losses=(2.0,))]
    duels = Duels.between(regrets(runs, (5,)), ["t"], ["a", "b", "c", "d"])
    assert duels.mean_ranks().tolist() == [1.0, 2.5, 2.5, 4.0]


def test_ranks_are_means_over_budgets_seeds_and_tables() -> None:
    runs = [
        run("a", losses=(2.0, 0.0)),
        run("b", losses=(1.0, 1.0)),  # better at the first budget, worse at the second
        run("a", seed=1, losses=(0.0,)),
        run("b", seed=1, losses=(1.0,)),
        run("a", table="u", losses=(2.0,)),
        run("b", table="u", losses=(1.0,)),
    ]
    duels = Duels.between(regrets(runs, (1, 2)), ["t", "u"], ["a", "b"])
    # a: on t (1.5 + 1) / 2 over the seeds, on u 2, where one seed has run
    assert duels.mean_ranks().tolist() == [1.625, 1.375]


def test_a_method_with_fewer_seeds_is_compared_on_those_it_has() -> None:
    runs = [run(name, seed=seed, losses=(loss,)) for name, loss in (("a", 0.0), ("b", 1.0)) for seed in range(4)]
    runs += [run("slow", seed=2, losses=(0.5,))]
    duels = Duels.between(regrets(runs, (5,)), ["t"], ["a", "b", "slow"])
    assert duels.mean_ranks().tolist() == [1.0, 3.0, 2.0]


def test_a_method_that_has_not_met_another_has_no_rank() -> None:
    runs = [run("a", seed=0), run("b", seed=1), run("c", seed=0), run("c", seed=1)]
    ranks = Duels.between(regrets(runs, (5,)), ["t"], ["a", "b", "c"]).mean_ranks()
    assert np.isnan(ranks[:2]).all() and ranks[2] == 2.0


def test_the_interval_of_what_never_varies_is_a_point() -> None:
    runs = [run(m, table=t, seed=s, losses=(x,)) for m, x in (("a", 0.0), ("b", 1.0)) for t in "tu" for s in range(3)]
    intervals = Duels.between(regrets(runs, (5,)), ["t", "u"], ["a", "b"]).intervals(rounds=50)
    assert [(one.mean, one.low, one.high) for one in intervals.values()] == [(1.0, 1.0, 1.0), (2.0, 2.0, 2.0)]


def test_the_interval_shows_what_other_seeds_would_have_said() -> None:
    """a wins with half of the 16 seeds: mean ranks of 16 coins, whose deviation is 1/8."""
    runs = [run("a", seed=seed, losses=(float(seed % 2),)) for seed in range(16)]
    runs += [run("b", seed=seed, losses=(0.5,)) for seed in range(16)]
    one = Duels.between(regrets(runs, (5,)), ["t"], ["a", "b"]).intervals()["a"]
    assert one.mean == 1.5
    assert one.low == pytest.approx(1.5 - 1.96 / 8, abs=0.07) and one.high == pytest.approx(1.5 + 1.96 / 8, abs=0.07)


def test_the_interval_shows_what_other_tables_would_have_said() -> None:
    """All seeds agree and the two tables do not: a sample of tables is one of them twice in half of the cases."""
    runs = [run("a", table=t, seed=s, losses=(x,)) for t, x in (("t", 0.0), ("u", 1.0)) for s in range(8)]
    runs += [run("b", table=t, seed=s, losses=(0.5,)) for t in "tu" for s in range(8)]
    one = Duels.between(regrets(runs, (5,)), ["t", "u"], ["a", "b"]).intervals()["a"]
    assert (one.mean, one.low, one.high) == (1.5, 1.0, 2.0)


def test_who_beat_whom_counts_the_seeds_that_both_have_and_ties_half() -> None:
    runs = [run("a", seed=seed, losses=(0.5,)) for seed in range(4)]
    runs += [run("b", seed=seed, losses=(loss,)) for seed, loss in enumerate((1.0, 0.5))]  # worse, equal
    runs += [run("c", seed=seed, losses=(1.0 if seed else 0.0,)) for seed in range(4)]  # better once
    duels = Duels.between(regrets(runs, (5,)), ["t"], ["a", "b", "c"])
    assert {name: one.mean for name, one in duels.beaten_by("a").items()} == {"b": 0.75, "c": 0.75}
    # c alone was better than b with seed 0, and b than c with seed 1
    assert {name: one.mean for name, one in duels.beaten_by("b").items()} == {"a": 0.25, "c": 0.5}


def test_mean_regrets_are_over_seeds() -> None:
    runs = [run("a", losses=(3.0, -1.0)), run("a", seed=1, losses=(1.0, 1.0))]
    means = mean_regrets(regrets(runs, (1, 5)), ["t"], ["a", "b"])
    assert list(means) == [("t", "a")] and means["t", "a"].tolist() == [0.75, 0.25]


def test_finished_runs_are_read_again_and_forgotten_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    file = RunFile(path, Settings())
    file.add(run("a", losses=(0.25, 0.125)))
    file.add(run("b"))
    file.forget(["a"])
    file.add(run("a", seed=1))
    assert file.runs.keys() == {("t", "b", 0), ("t", "a", 1)}
    again = RunFile(path, Settings())
    assert again.runs.keys() == file.runs.keys()
    assert again.runs["t", "b", 0].regret(5) == run("b").regret(5)
    with pytest.raises(ValueError, match="give another --file"):
        RunFile(path, Settings(n_workers=8))


def searches(method: str, *, trainings: int, seeds: int = 1) -> list[Run]:
    return [
        Run("t", method, seed, trainings, 10.0, 0.0, 1.0, [0.0], [0.5], trials=5, suggest_ms=[1.0])
        for seed in range(seeds)
    ]


def test_what_has_run_with_small_budgets_alone_is_compared_at_those() -> None:
    long = [*searches("random", trainings=100), *searches("Sobol", trainings=100)]
    runs = [*long, *searches("TPE", trainings=40)]
    found = {group.title: list(group.methods) for group in groups(runs, METHODS)}
    assert found == {
        "all tables, to 100 trainings": ["random", "Sobol"],
        "all tables, to 40 trainings": ["random", "Sobol", "TPE"],
    }
    runs = [*long, *searches("TPE", trainings=100)]
    assert [group.title for group in groups(runs, METHODS)] == ["all tables, to 100 trainings"]


def test_a_row_counts_the_runs_that_had_all_of_its_budgets() -> None:
    runs = searches("random", trainings=100, seeds=3) + searches("Sobol", trainings=100, seeds=2)
    runs += [one for one in searches("Sobol", trainings=40, seeds=3) if one.seed > 1]
    ranks = tables_of(runs, METHODS)[0].splitlines()
    assert {row.split("|")[1].strip(): row.split("|")[-2].strip() for row in ranks[2:]} == {"random": "3", "Sobol": "2"}


def test_the_tables_of_a_page_are_written_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n\n{MARKS[0]}\nold\n{MARKS[1]}\n\nAfter.\n")
    write_page(page, ["first", "second"])
    written = page.read_text()
    assert written == f"Before.\n\n{MARKS[0]}\n\nfirst\n\nsecond\n\n{MARKS[1]}\n\nAfter.\n"
    write_page(page, ["first", "second"])
    assert page.read_text() == written
    page.write_text(MARKS[0])
    with pytest.raises(ValueError, match="has no lines"):
        write_page(page, [])


def own(folder: Path) -> Path:
    """A table of a user: error |x - 3| + 1 / epoch, ten seconds an epoch, x = 0, 1, ..., 9, three epochs."""
    rows = [f"{x},{epoch},{10 * epoch},{abs(x - 3) + 1 / epoch}" for x in range(10) for epoch in (1, 2, 3)]
    path = folder / "own.csv"
    path.write_text("\n".join(["x,epoch,elapsed_s,error", *rows]) + "\n")
    return path


def test_a_table_of_a_user_has_its_best_and_median_values(tmp_path: Path) -> None:
    task: Task = of_csv(own(tmp_path), ("x",), "error", "min", "epoch", "elapsed_s")
    assert (task.name, task.training_s, task.max_resource, task.has_curves) == ("own", 30.0, 3, True)
    assert task.best == pytest.approx(1 / 3) and task.median == pytest.approx(2.5 + 1 / 3)
    most: Task = of_csv(own(tmp_path), ("x",), "error", "max", "epoch", "elapsed_s")
    assert most.best == -7.0


def test_a_quick_run_ends_with_tables_and_a_figure_and_is_not_run_twice(tmp_path: Path) -> None:
    names = ("--csv", own(tmp_path), "--hyperparameters", "x", "--metric", "error")
    files = ("--file", tmp_path / "runs.jsonl", "--figure", tmp_path / "figure.png")
    command = [sys.executable, str(PROGRAM), "--quick", *map(str, (*names, *files))]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    assert (
        "| mean rank of 3, all tables, to 20 trainings | all budgets (95 % interval) " in shown.stdout
        and "| ASHA " in shown.stdout
    )
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    lines = (tmp_path / "runs.quick.jsonl").read_text().splitlines()
    assert {json.loads(line)["method"] for line in lines[1:]} == {"random", "Sobol", "ASHA"}
    assert "1/3" in shown.stderr
    again = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "1/3" not in again.stderr and (tmp_path / "runs.quick.jsonl").read_text().splitlines() == lines
