"""The examples on several workers and devices: of remote calls, and of data parallelism.

One file for both: loading torch takes longer than most of them. Those of remote calls learn, with as many calls as they
say, and end with all their processes. Those of data parallelism print what the book prints, and the same bits on any
number of devices.
"""

import ast
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program_runs import LoadedInterpreter

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


def test_trainers_stream_the_batches_of_a_data_server(run_example: Callable[[str], str]) -> None:
    output = run_example("stream_batches")
    trainers = re.findall(r"^Trainer (\d): 719 digits in \S+ s, test error (\S+)$", output, re.M)
    assert sorted(number for number, _ in trainers) == ["0", "1"], output
    assert all(float(error) < 0.85 for _, error in trainers), output  # chance is 0.9


def test_an_interrupted_group_ends_with_all_its_processes(torch_loaded: LoadedInterpreter, tmp_path: Path) -> None:
    script = EXAMPLES / "rl_cartpole.py"
    done = torch_loaded.run(script, folder=tmp_path, interrupt_after="Episode 10", forks=True)
    assert done.status == -signal.SIGINT and "KeyboardInterrupt" in done.err
    assert "Solved!" not in done.out


# -- data parallelism --------------------------------------------------------------------------------------------------


@pytest.fixture
def page_of_the_book(repository: Path) -> str:
    return (repository / "docs" / "book" / "13.5.md").read_text()


@pytest.fixture
def no_fashion_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where somebody has it: a machine with all of it would train for minutes."""
    monkeypatch.setenv("FANWISE_DATA", str(tmp_path / "nothing"))


def test_data_parallelism_from_scratch_prints_what_the_book_does_and_learns(
    run_example: Callable[[str], str], page_of_the_book: str, no_fashion_mnist: None
) -> None:
    output = run_example("data_parallel_scratch")
    assert output.startswith("Trained on digits. Fashion-MNIST is not complete: ")
    assert re.search(r"^b1 weight: \[0\.0, .*0\.0\]\nb1 grad: None$", output, re.M)
    assert "before allreduce: tensor([[1., 1.]]) tensor([[2., 2.]])" in output
    assert "after allreduce: tensor([[3., 3.]]) tensor([[3., 3.]])" in output
    assert re.search(r"scattered:\ntensor\(\[\[0, 1, .* 9\]\]\)\ntensor\(\[\[10, 11, .* 19\]\]\)", output, re.S)
    runs = re.findall(r"^(?:0\.\d\d ){4}test acc: (0\.\d\d), \d+\.\d sec/epoch on (\[.*\])$", output, re.M)
    assert [len(ast.literal_eval(devices)) for _, devices in runs] == [1, 2]
    assert all(float(accuracy) > 0.6 for accuracy, _ in runs), "four epochs give 0.82 to 0.91 with seeds 1 and 2"
    cells = re.search(r"^b1 weight.*?19\]\]\)\n", output, re.M | re.S)
    assert cells and f"```text\n{cells[0]}```" in page_of_the_book, "the page quotes the cells as they are printed"


def test_processes_of_torchrun_have_the_bits_of_one_process_and_call_each_other(
    run_example: Callable[[str], str], tmp_path: Path
) -> None:
    alone = re.findall(r"^1 processes, loss (.*)$", run_example("launched_processes"), re.M)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command = [*torchrun, "--nproc-per-node=2", str(EXAMPLES / "launched_processes.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^2 processes, loss (.*)$", done.stdout, re.M) == alone
    assert [re.sub(" on .*", "", line) for line in done.stdout.splitlines()[1:]] == ["process 0 is", "process 1 is"]


def functions_of(example: str) -> dict[str, list[str]]:
    """The names of the arguments of each function."""
    tree = ast.parse((EXAMPLES / example).read_text())
    return {node.name: [each.arg for each in node.args.args] for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_from_scratch_has_the_signatures_of_the_book() -> None:
    functions = functions_of("data_parallel_scratch.py")
    assert functions["lenet"] == ["X", "params"]
    assert functions["get_params"] == ["params", "device"]
    assert functions["train_batch"] == ["X", "y", "device_params", "devices", "lr"]
    assert functions["train"] == ["num_gpus", "batch_size", "lr"]


def test_the_page_of_the_book_leads_to_every_function(page_of_the_book: str) -> None:
    led_to = re.findall(r"\[`def (\w+)\(`\]\([^)]*data_parallel_scratch.py#L\d+\)", page_of_the_book)
    assert set(led_to) == set(functions_of("data_parallel_scratch.py"))
    for name in ("get_params(params, device)", "allreduce(data)", "split_batch(X, y, devices)", "lenet(X, params)"):
        assert f"`{name}` |" in page_of_the_book, "the chapter has it"


def test_from_scratch_takes_fashion_mnist_where_it_is(
    run_example: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "root" / "FashionMNIST" / "raw"  # as torchvision makes it
    raw.mkdir(parents=True)
    for half, count in (("train", 20), ("t10k", 10)):
        (raw / f"{half}-images-idx3-ubyte").write_bytes(
            struct.pack(">4I", 2051, count, 28, 28) + bytes(count * 28 * 28)
        )
        (raw / f"{half}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2I", 2049, count) + bytes(range(10)) * (count // 10)
        )
    monkeypatch.setenv("FANWISE_DATA", str(tmp_path / "root"))
    output = run_example("data_parallel_scratch")
    assert output.startswith("b1 weight:") and output.count("test acc: 0.10, ") == 2


OF_ONE_AND_OF_THE_OTHER = """
import fanwise as fw
from torch import nn

batches = torch.randperm(1438, generator=torch.Generator().manual_seed(2))[:960].split(32)

def from_scratch(k):
    devices = ["cpu"] * k
    device_params = [get_params(params, device) for device in devices]
    for rows in batches:
        train_batch(data.train_images[rows], data.train_labels[rows], device_params, devices, 0.2)
    right = (lenet(data.test_images, device_params[0]).argmax(1) == data.test_labels).double().mean()
    assert accuracy(device_params, devices) == right.item()
    return torch.cat([param.detach().flatten() for param in device_params[-1]])

def concise(run):
    model = nn.ParameterList([param.clone() for param in params])
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    step = run.step(model, optimizer, lambda m, X, y: cross_entropy(lenet(X, list(m)), y, reduction="none"))
    for rows in batches:
        step((data.train_images[rows], data.train_labels[rows]))
    return torch.cat([param.detach().flatten() for param in model])

one = from_scratch(1)
for k in (1, 2, 3, 4):
    mine = from_scratch(k)
    theirs = fw.run(concise, devices=1, shards=k, progress=False)
    print(k, torch.equal(mine, theirs), float((mine - one).abs().max()) < 1e-3 * float(one.abs().max()))
"""


def test_from_scratch_and_concise_train_to_the_same_bits_on_as_many_shards(
    torch_loaded: LoadedInterpreter, tmp_path: Path, no_fashion_mnist: None
) -> None:
    functions, cells, _ = (EXAMPLES / "data_parallel_scratch.py").read_text().partition("\nb1 = ")
    assert cells
    script = tmp_path / "both.py"
    script.write_text(functions + OF_ONE_AND_OF_THE_OTHER)
    done = torch_loaded.run(script, folder=tmp_path, forks=True)
    assert done.out.splitlines()[1:] == [f"{k} True True" for k in (1, 2, 3, 4)], done.said


def test_the_batch_grows_with_the_devices_and_the_result_does_not_depend_on_them(
    run_example: Callable[[str], str],
) -> None:
    output = run_example("data_parallel_exercises")
    rows = re.fullmatch(
        r"k  batch   lr 0\.4\n1     16     0\.\d\d\n2     32     (0\.\d\d)\n"
        r"batch 32 and lr 0\.4 on 1 device: (0\.\d\d), on 2 devices: (0\.\d\d)\n",
        output,
    )
    assert rows and rows[1] == rows[2] == rows[3], output


def test_the_ways_to_sum_are_compared_on_paper_and_here(run_example: Callable[[str], str]) -> None:
    rows = re.findall(r"^(\d)  (\w+) +(\S+) ms +\S+ ms +(\w+)$", run_example("allreduce_ways"), re.M)
    assert [(k, how) for k, how, _, _ in rows] == [(k, how) for k in "248" for how in ("root", "tree", "ring", "owner")]
    bits = {(k, how): bits for k, how, _, bits in rows}
    # Two numbers have one sum. Of more, the owners add along the tree; the root from left to right, and the ring so for
    # each slice, from another device on.
    assert [how for (k, how), same in bits.items() if k == "2" and same != "equal"] == []
    assert [how for (k, how), same in bits.items() if k == "4" and same == "equal"] == ["tree", "owner"]
    assert [how for (k, how), same in bits.items() if k == "8" and same == "equal"] == ["tree", "owner"]


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
