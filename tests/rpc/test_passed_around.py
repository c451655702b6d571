"""What programs pass each other besides plain values: the same program with torch's rpc and with ours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program_runs import LoadedInterpreter

PROGRAM = Path(__file__).with_name("passed_around.py")
FUTURE = "Can not pickle torch.futures.Future"
# What torch cannot do, and what ours does.
MORE = {
    "proxy as argument": 8,
    "async proxy as argument": 8,
    "proxy returned": 8,
    "to_here of the caller's": 7,
    "lambda": 2,
    "lambda with a reference": 7,
}

Found = dict[str, list[Any]]


@pytest.fixture(scope="module")
def run(torch_loaded: LoadedInterpreter, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Found]:
    def run(which: str) -> Found:
        folder = tmp_path_factory.mktemp("passed")
        done = torch_loaded.run(PROGRAM, folder=folder, environment={"WHICH": which}, forks=True)
        assert done.status == 0, done.said
        found: Found = json.loads(done.out)
        return found

    return run


@pytest.fixture(scope="module")
def ours(run: Callable[[str], Found]) -> Found:
    return run("fanwise.rpc")


def test_what_travels_with_torch_travels_with_ours(run: Callable[[str], Found], ours: Found) -> None:
    torchs = run("torch.distributed.rpc")
    travelled = {name for name, (what, *_) in torchs.items() if what == "value"}
    assert len(travelled) > 35
    assert {name: ours[name] for name in travelled} == {name: torchs[name] for name in travelled}
    assert {name: found[1] for name, found in ours.items() if found[0] == "value" and name not in travelled} == MORE


def test_a_future_says_where_it_was_and_what_to_send(ours: Found) -> None:
    for name, part in {
        "future": "argument 0 (a torch.jit.Future) of the call of same on w1",
        "future in a list": "argument 'value' (a builtins.list) of the call of same on w1",
        "future of a call": "argument 0 (a fanwise.rpc.calling.call_future.CallFuture) of the call of same on w1",
        "bound method of a future": "the function (a builtins.method) of the call of Future.wait on w1",
    }.items():
        assert ours[name][:2] == ["error", "RuntimeError"]
        assert ours[name][2].startswith(f"{FUTURE}: {part} is one, or holds one.\n")
        assert "Send its value, future.wait()" in ours[name][2]
    for name, function in {"future returned": "done_future", "async proxy method": "add"}.items():
        assert ours[name][:2] == ["error", "RuntimeError"]
        assert ours[name][2].startswith(f"{FUTURE}: what {function} returned is one, or holds one.\n")
        assert "rpc.functions.async_execution" in ours[name][2]


def test_a_lambda_as_argument_is_named(ours: Found) -> None:
    what, kind, said = ours["lambda as argument"]
    assert (what, kind) == ("error", "NotSendableError")
    assert said.startswith("argument 0 (a builtins.function) of the call of call on w1 cannot be sent: ")
