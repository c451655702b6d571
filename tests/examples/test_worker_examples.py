"""The examples on several workers and devices: of remote calls, and of data parallelism.

One file for both: loading torch takes longer than most of them. Those of remote calls learn, with as many calls as they
say, and end with all their processes. Those of data parallelism print what the book prints, and the same bits on any
number of devices.
"""

import ast
import re
import signal
from collections.abc import Callable
from pathlib import Path

from fanwise.testing.programs import LoadedInterpreter

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# -- remote calls ------------------------------------------------------------------------------------------------------


def test_an_agent_learns_from_observers_that_call_it_twice_a_step(run_example: Callable[[str], str]) -> None:
    output = run_example("rl_cartpole")
    assert re.search(r"^Episode 10\tLast reward: \d+\.00\tAverage reward: \d+\.\d\d$", output, re.M)
    solved = re.search(r"^Solved! Running reward is now (\S+): (\d+) episodes, (\d+) steps, (\d+) calls$", output, re.M)
    assert solved and float(solved[1]) > 20.0
    assert int(solved[4]) == 2 * int(solved[3]) > 2 * int(solved[2])


def test_with_one_call_a_step_there_are_about_half_as_many_calls(run_example: Callable[[str], str]) -> None:
    output = run_example("rl_cartpole_batched")
    episode = re.search(r"^Episode 10\tRewards: \[(\d+)\.0, (\d+)\.0\]\tCalls: (\d+)$", output, re.M)
    assert episode, output
    steps = int(episode[1]) + int(episode[2])  # each step brings a reward of 1
    assert int(episode[3]) == steps + 2  # one more for each observer, with its last reward


def test_an_rnn_trains_on_two_workers(run_example: Callable[[str], str]) -> None:
    output = run_example("rnn_parameter_server")
    losses = re.findall(r"^Training epoch \d: loss (\S+)$", output, re.M)
    assert len(losses) == 2 and all(1.5 < float(loss) < 4.0 for loss in losses), output


def test_a_parameter_server_steps_once_for_all_trainers(run_example: Callable[[str], str]) -> None:
    output = run_example("parameter_server_batched")
    assert re.search(r"^5 steps of 2 trainers in \d+\.\d s, test error 0\.\d{3}$", output, re.M), output


def test_a_model_on_two_workers_learns_the_digits(run_example: Callable[[str], str]) -> None:
    output = run_example("pipeline_resnet")
    epoch = re.search(r"^Epoch 1: test error (\S+), \S+ s$", output, re.M)
    assert epoch and float(epoch[1]) < 0.7, output  # chance is 0.9


def test_an_interrupted_group_ends_with_all_its_processes(torch_loaded: LoadedInterpreter, tmp_path: Path) -> None:
    script = EXAMPLES / "rl_cartpole.py"
    done = torch_loaded.run(script, folder=tmp_path, interrupt_after="Episode 10", forks=True)
    assert done.status == -signal.SIGINT and "KeyboardInterrupt" in done.err
    assert "Solved!" not in done.out


# -- data parallelism --------------------------------------------------------------------------------------------------


def test_data_parallelism_from_scratch_prints_what_the_book_does(run_example: Callable[[str], str]) -> None:
    output = run_example("data_parallel_scratch")
    assert re.search(r"^b1 weight: \[0\.0, .*0\.0\] \nb1 grad: None$", output, re.M)
    assert "before allreduce: tensor([[1., 1.]]) tensor([[2., 2.]])" in output
    assert "after allreduce: tensor([[3., 3.]]) tensor([[3., 3.]])" in output
    assert re.search(r"scattered:\ntensor\(\[\[0, 1, .* 9\]\]\)\ntensor\(\[\[10, 11, .* 19\]\]\)", output, re.S)
    difference = re.search(r"^1 and 2 devices differ by (\S+), parameters go up to (\S+)$", output, re.M)
    # Other orders of float32 additions, over the steps of an epoch: 3e-5 was seen.
    assert difference and float(difference[1]) < 1e-4 * float(difference[2])
    runs = re.findall(r"^train\((.*)\): 0\.\d\d test acc: 0\.\d\d, \d+\.\d sec/epoch on (\[.*\])$", output, re.M)
    larger = ["2, 64, 0.2", "2, 64, 0.4", "4, 128, 0.2", "4, 128, 0.8"]
    assert [run[0] for run in runs[2:]] == ["1, 32, 0.2", "2, 32, 0.2", *larger]
    assert [len(ast.literal_eval(run[1])) for run in runs[2:]] == [1, 2, 2, 2, 4, 4]


def test_the_ways_to_sum_are_compared_on_paper_and_here(run_example: Callable[[str], str]) -> None:
    rows = re.findall(r"^(\d)   (\w+) +(\S+) ms +\S+ ms$", run_example("allreduce_ways"), re.M)
    assert [(k, how) for k, how, _ in rows] == [(k, how) for k in "248" for how in ("root", "tree", "ring", "owner")]


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
