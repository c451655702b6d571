"""The examples of remote calls learn, with as many calls as they say, and end with all their processes."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

from fanwise.testing.programs import run_program

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


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


def test_an_interrupted_group_ends_with_all_its_processes(tmp_path: Path) -> None:
    script = tmp_path / "rl_cartpole.py"
    script.write_text((EXAMPLES / script.name).read_text())
    done = run_program([script.name], folder=tmp_path, interrupt_after="Episode 10")
    assert done.status == -signal.SIGINT and "KeyboardInterrupt" in done.err
    assert "Solved!" not in done.out
