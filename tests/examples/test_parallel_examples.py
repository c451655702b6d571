"""The examples of data parallelism print what the book prints, and the same bits on any number of devices."""

import ast
import re
from collections.abc import Callable


def test_data_parallelism_from_scratch_prints_what_the_book_does(run_example: Callable[[str], str]) -> None:
    output = run_example("data_parallel_scratch")
    assert re.search(r"^b1 weight: \[0\.0, .*0\.0\] \nb1 grad: None$", output, re.M)
    assert "before allreduce: tensor([[1., 1.]]) tensor([[2., 2.]])" in output
    assert "after allreduce: tensor([[3., 3.]]) tensor([[3., 3.]])" in output
    assert re.search(r"scattered:\ntensor\(\[\[0, 1, .* 9\]\]\)\ntensor\(\[\[10, 11, .* 19\]\]\)", output, re.S)
    difference = re.search(r"^1 and 2 devices differ by (\S+), parameters go up to (\S+)$", output, re.M)
    assert difference and float(difference[1]) < 1e-5 * float(difference[2])
    runs = re.findall(r"^train\((.*)\): 0\.\d\d test acc: 0\.\d\d, \d+\.\d sec/epoch on (\[.*\])$", output, re.M)
    assert [run[0] for run in runs[2:]] == ["1, 32, 0.2", "2, 32, 0.2", "2, 64, 0.2", "2, 64, 0.4"]
    assert [len(ast.literal_eval(run[1])) for run in runs[2:]] == [1, 2, 2, 2]


def test_one_network_is_trained_on_any_number_of_devices_with_the_same_bits(run_example: Callable[[str], str]) -> None:
    output = run_example("data_parallel")
    # 1438 images are 45 batches of 32, each of 4 shards.
    lines = re.findall(r"^test acc: 0\.\d\d, \d+\.\d sec/epoch, (\d+) shards in (\d) processes$", output, re.M)
    assert lines == [("180", "1"), ("180", "2"), ("180", "4")], output
    assert output.endswith("same bits: True\n")


def test_the_best_trial_of_a_search_on_two_devices_is_the_same_on_one(run_example: Callable[[str], str]) -> None:
    output = run_example("tune_data_parallel")
    assert len(re.findall(r"^trial \d completed: validation_error=", output, re.M)) == 2, output
    assert output.endswith(", the same number\n"), output
