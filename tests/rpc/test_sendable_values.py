"""Values that can be sent in calls: the same program with torch.distributed.rpc and with fanwise.rpc."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program_runs import LoadedInterpreter

PROGRAM = Path(__file__).with_name("sendable_values.py")
FUTURE = "Can not pickle torch.futures.Future"
# Cases that fail with torch.
FAILING_WITH_TORCH = {
    "proxy as argument": 8,
    "async proxy as argument": 8,
    "proxy returned": 8,
    "to_here of the caller's": 7,
    "lambda": 2,
    "lambda with a reference": 7,
}

Results = dict[str, list[Any]]


@pytest.fixture(scope="module")
def run(torch_loaded: LoadedInterpreter, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    def run(which: str) -> Results:
        folder = tmp_path_factory.mktemp("values")
        done = torch_loaded.run(PROGRAM, folder=folder, environment={"WHICH": which}, forks=True)
        assert done.status == 0, done.said
        results: Results = json.loads(done.out)
        return results

    return run


@pytest.fixture(scope="module")
def fanwise_results(run: Callable[[str], Results]) -> Results:
    return run("fanwise.rpc")


def test_values_that_can_be_sent_with_torch_can_be_sent_with_fanwise(
    run: Callable[[str], Results], fanwise_results: Results
) -> None:
    torch_results = run("torch.distributed.rpc")
    sent = {name for name, (kind_of_result, *_) in torch_results.items() if kind_of_result == "value"}
    assert len(sent) > 35
    assert {name: fanwise_results[name] for name in sent} == {name: torch_results[name] for name in sent}
    assert {
        name: result[1] for name, result in fanwise_results.items() if result[0] == "value" and name not in sent
    } == FAILING_WITH_TORCH


def test_error_of_a_future_names_its_place_and_the_value_to_send(fanwise_results: Results) -> None:
    for name, part in {
        "future": "argument 0 (a torch.jit.Future) of the call of same on w1",
        "future in a list": "argument 'value' (a builtins.list) of the call of same on w1",
        "future of a call": "argument 0 (a fanwise.rpc.calling.call_future.CallFuture) of the call of same on w1",
        "bound method of a future": "the function (a builtins.method) of the call of Future.wait on w1",
    }.items():
        assert fanwise_results[name][:2] == ["error", "RuntimeError"]
        assert fanwise_results[name][2].startswith(f"{FUTURE}: {part} is one, or holds one.\n")
        assert "Send its value, future.wait()" in fanwise_results[name][2]
    for name, function in {"future returned": "done_future", "async proxy method": "add"}.items():
        assert fanwise_results[name][:2] == ["error", "RuntimeError"]
        assert fanwise_results[name][2].startswith(f"{FUTURE}: what {function} returned is one, or holds one.\n")
        assert "rpc.functions.async_execution" in fanwise_results[name][2]


def test_lambda_as_argument_is_named(fanwise_results: Results) -> None:
    kind_of_result, kind, text = fanwise_results["lambda as argument"]
    assert (kind_of_result, kind) == ("error", "NotSendableError")
    assert text.startswith("argument 0 (a builtins.function) of the call of call on w1 cannot be sent: ")
