"""What users get wrong, and what their functions do: every mistake is named, and nothing is broken afterwards."""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rpc_workers import LIMIT_S, Nursery, Workers, all_do, leave
from torch.futures import Future
from torch.utils.data import DataLoader, Dataset

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded, JoinError
from fanwise.rpc import agent as agents
from fanwise.testing import within

# Any throughout: what users' functions take and return.
KEPT: list[Any] = []

# -- what workers are told to do, and call -------------------------------------------------------------------------


def pid() -> int:
    return os.getpid()


def echo(value: Any) -> Any:
    return value


def call(to: Any, function: Any, *args: object, **kwargs: Any) -> Any:
    return rpc.rpc_sync(to, function, args, **kwargs)


def in_each_way(to: Any, function: Any, *args: object) -> list[str]:
    """The type of the error of each way to call."""
    ways: list[Callable[[], object]] = [
        lambda: rpc.rpc_sync(to, function, args),
        lambda: rpc.rpc_async(to, function, args).wait(),
        lambda: rpc.remote(to, function, args).to_here(),
    ]
    return [error_of(way) for way in ways]


def error_of(way: Callable[[], object]) -> str:
    try:
        way()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.fixture(scope="module")
def pair(nursery: Nursery, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two workers of many tests, which leave in order when these are over."""
    nursery.learn(request.module.__name__, request.module.__file__)
    workers = Workers(nursery, tmp_path_factory.mktemp("pair"))
    pair = workers.group(2)
    yield pair
    try:
        all_do(pair, leave)
    finally:
        workers.close()


@pytest.fixture
def two(pair: Any) -> Any:
    """Two workers, which still work when the test is over."""
    yield pair
    assert pair[0].do(call, "w1", pid) == pair[1].pid and pair[1].do(call, "w0", pid) == pair[0].pid


@pytest.fixture
def new_two(real_workers: Workers) -> Any:
    """Two workers of this test alone, which still work and leave in order when it is over."""
    two = real_workers.group(2)
    yield two
    assert two[0].do(call, "w1", pid) == two[1].pid and two[1].do(call, "w0", pid) == two[0].pid
    all_do(two, leave)


# -- names, ranks, states ------------------------------------------------------------------------------------------


def test_the_wrong_name_lists_the_known_ones(two: Any) -> None:
    for wrong in ("w9", 9, -1):
        for error in two[0].do(in_each_way, wrong, pid):
            assert error.startswith("RuntimeError") and "w0 (0), w1 (1)" in error and repr(wrong) in error


@pytest.mark.parametrize("wrong", [None, 1.0, True, b"w1", ["w1"]])
def test_what_is_no_name_at_all_is_a_value_error(two: Any, wrong: object) -> None:
    for error in two[0].do(in_each_way, wrong, pid):
        assert error.startswith("ValueError") and str(wrong) in error


def test_a_call_before_init_and_after_shutdown_says_so(real_workers: Workers) -> None:
    alone = real_workers.start("w0")
    for _ in range(2):
        for error in alone.do(in_each_way, "w0", pid):
            assert error.startswith("RuntimeError: RPC has not been initialized. Call fanwise.rpc.init_rpc first")
        with pytest.raises(RuntimeError, match="RPC has not been initialized"):
            alone.do(leave)
        real_workers.url += "-again"
        alone.do(join_alone, real_workers.url)
        alone.do(leave)


def join_alone(url: str, name: str = "w0", rank: Any = 0, size: Any = 1, **options: Any) -> None:
    settings = rpc.TensorPipeRpcBackendOptions(init_method=url, **options)
    rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=settings)


def test_a_second_init_says_so_and_changes_nothing(two: Any, real_workers: Workers) -> None:
    with pytest.raises(RuntimeError, match="RPC is already initialized"):
        two[0].do(join_alone, real_workers.url + "-2")


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"rank": 5, "size": 2}, ValueError, "rank 5"),
        ({"rank": -2, "size": 2}, ValueError, "-2"),
        ({"rank": 0, "size": 0}, ValueError, "0"),
        ({"rank": 0, "size": -1}, ValueError, "world_size"),
        ({"rank": "0"}, RuntimeError, "'0'"),
        ({"size": 1.5}, RuntimeError, "1.5"),
        ({"name": ""}, RuntimeError, "non-empty"),
        ({"name": "a b"}, RuntimeError, "'a b'"),
        ({"name": "x" * 200}, RuntimeError, "200"),
        ({"rpc_timeout": "soon"}, TypeError, "soon"),
        ({"rpc_timeout": -1}, ValueError, "-1"),
        ({"num_worker_threads": 0}, ValueError, "0"),
    ],
)
def test_settings_that_cannot_be_are_refused_and_the_process_may_try_again(
    real_workers: Workers, settings: dict[str, Any], kind: Any, text: str
) -> None:
    alone = real_workers.start("w0")
    with pytest.raises(kind, match=text):
        alone.do(join_alone, real_workers.url, **settings)
    assert alone.do(num_threads) == 1
    alone.do(join_alone, real_workers.url)
    assert alone.do(call, "w0", pid) == alone.pid
    alone.do(leave)


def num_threads() -> int:
    """Of our own."""
    return sum(not thread.name.startswith("asyncio") for thread in threading.enumerate())


def test_a_name_or_rank_that_is_taken_is_refused_with_its_holder(real_workers: Workers) -> None:
    one = real_workers.join(0, None)
    with pytest.raises(JoinError, match="'w0' is not unique"):
        real_workers.join(1, None, "w0")
    with pytest.raises(JoinError, match=r"rank 0, which 'other' .* is taken by 'w0'"):
        real_workers.join(0, None, "other")
    two = real_workers.join(1, None)
    assert two.do(call, "w0", pid) == one.pid


def test_world_sizes_that_differ_are_named(real_workers: Workers) -> None:
    first, second = real_workers.begin(0, 2), real_workers.begin(1, 3)
    with pytest.raises(JoinError, match="world_size=3, but the group has world_size=2"):
        second.result()
    real_workers.join(1, 2)
    first.result()


# -- functions, arguments, time-outs -------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, 3, "pid"])
def test_what_cannot_be_called_is_a_type_error_at_the_caller(two: Any, wrong: object) -> None:
    for error in two[0].do(in_each_way, "w1", wrong):
        assert error.startswith("TypeError: function should be callable") and repr(wrong) in error


@pytest.mark.parametrize("wrong", ["soon", None, [1]])
def test_a_time_out_that_is_no_number_is_a_type_error_at_the_caller(two: Any, wrong: object) -> None:
    with pytest.raises(TypeError):
        two[0].do(call, "w1", pid, timeout=wrong)


def test_a_time_out_is_told_with_the_worker_and_its_length(two: Any, tmp_path: Path) -> None:
    with pytest.raises(DeadlineExceeded, match=r"\(50 ms\).*w1") as caught:
        two[0].do(call, "w1", wait_for_file, tmp_path / "go", timeout=0.05)
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, TimeoutError)
    (tmp_path / "go").touch()


@pytest.mark.parametrize("over", [-3, -0.5, float("-inf")])
def test_a_time_that_is_over_before_the_call_is_a_time_out(two: Any, over: float) -> None:
    """As with torch: what was left until some moment may be below 0. Only -1 means the default."""
    with pytest.raises(DeadlineExceeded, match=r"more than set timeout \(-.* ms\).*not sent") as caught:
        two[0].do(call, "w1", pid, timeout=over)
    assert isinstance(caught.value, RuntimeError)
    by_future, by_reference = two[0].do(in_no_time, "w1", over)
    assert by_future.startswith("DeadlineExceeded") and by_reference != "no error"
    assert two[0].do(call, "w1", pid, timeout=-1) == two[1].pid


def test_a_time_that_is_no_time_is_refused(two: Any) -> None:
    with pytest.raises(ValueError, match="got nan"):
        two[0].do(call, "w1", pid, timeout=float("nan"))


def in_no_time(to: str, timeout: float) -> list[str]:
    return [
        error_of(lambda: rpc.rpc_async(to, pid, timeout=timeout).wait()),
        error_of(lambda: rpc.remote(to, pid, timeout=timeout).to_here()),
    ]


def nested(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def call_with_nested(to: str, depth: int) -> list[str]:
    return [
        error_of(lambda: rpc.rpc_sync(to, len, (nested(depth),))),
        error_of(lambda: rpc.rpc_sync(to, nested, (depth,))),
    ]


def test_what_is_nested_too_deep_is_named_with_what_to_do(two: Any) -> None:
    argument, result = two[0].do(call_with_nested, "w1", 100_000)
    assert argument.startswith("NotSendableError: argument 0 (a builtins.list) of the call of len on w1 cannot be sent")
    assert result.startswith("NotSendableError: what nested returned (a builtins.list) cannot be sent")
    for error in (argument, result):
        assert "nested deeper than pickle can follow" in error and "sys.setrecursionlimit" in error


def wait_for_file(path: Path) -> None:
    within(LIMIT_S, path.exists, "the test goes on")


def call_with_lock(to: str, way: str) -> list[str]:
    lock = threading.Lock()
    args, kwargs = ((1, lock), {}) if way == "positional" else ((1,), {"value": {"deep": [lock]}})
    ways: list[Callable[[], object]] = [
        lambda: rpc.rpc_sync(to, echo, args, kwargs),
        lambda: rpc.rpc_async(to, echo, args, kwargs).wait(),
        lambda: rpc.remote(to, echo, args, kwargs).to_here(),
    ]
    return [error_of(way) for way in ways]


@pytest.mark.parametrize(("way", "what"), [("positional", "argument 1"), ("by name", "argument 'value'")])
def test_an_argument_that_cannot_be_pickled_is_named(two: Any, way: str, what: str) -> None:
    for error in two[0].do(call_with_lock, "w1", way):
        assert error.startswith("NotSendableError") and what in error and "lock" in error and "echo" in error


def a_lock() -> Any:
    return threading.Lock()


def a_generator() -> Iterator[int]:
    yield 1


def a_future() -> "Future[int]":
    future: Future[int] = Future()
    future.set_result(1)
    return future


@pytest.mark.parametrize(
    ("function", "text"), [(a_lock, "lock"), (a_generator, "generator"), (a_future, "torch.futures.Future")]
)
def test_a_result_that_cannot_be_pickled_is_an_error_of_the_call(two: Any, function: Any, text: str) -> None:
    sync, by_future, by_reference = two[0].do(in_each_way, "w1", function)
    for error in (sync, by_future, by_reference):
        assert error != "no error" and text in error


def of_a_closure(to: str) -> int:
    three = 3
    value: int = rpc.rpc_sync(to, lambda x: x + three, (1,))
    return value


def test_a_lambda_travels(two: Any) -> None:
    assert two[0].do(of_a_closure, "w1") == 4


def reference_from(to: str) -> Any:
    rref = rpc.rpc_sync(to, a_reference)
    return rref.to_here(), rref.owner_name()


def a_reference() -> Any:
    return rpc.RRef(7)


def test_a_reference_may_be_returned(two: Any) -> None:
    assert two[0].do(reference_from, "w1") == (7, "w1")


class Unreadable:
    """Can be pickled; reading it raises."""

    def __reduce__(self) -> Any:
        return _not_readable, ()


def _not_readable() -> None:
    raise ValueError("this cannot be read")


def value_of(rref: Any) -> str:
    return error_of(lambda: rref.to_here(timeout=5.0))


def hand_on_what_its_owner_cannot_read(owner: str, third: str) -> list[str]:
    rref = rpc.remote(owner, echo, (Unreadable(),))
    return [rpc.rpc_sync(third, value_of, (rref,)), error_of(rref.to_here)]


def test_a_reference_whose_call_its_owner_cannot_read_fails_for_all_who_hold_it(real_workers: Workers) -> None:
    workers = real_workers.group(3)
    for said in workers[0].do(hand_on_what_its_owner_cannot_read, "w1", "w2"):
        assert "this cannot be read" in said
    all_do(workers, leave)


def change(tensor: torch.Tensor, numbers: list[int]) -> tuple[torch.Tensor, list[int]]:
    tensor.add_(1)
    numbers.append(1)
    return tensor, numbers


def call_that_changes(to: str, size: int) -> bool:
    tensor, numbers = torch.zeros(size), [0]
    for _ in range(2):
        theirs, theirs_numbers = rpc.rpc_sync(to, change, (tensor, numbers))
        assert int(theirs.sum()) == size and theirs_numbers == [0, 1]
    return int(tensor.sum()) == 0 and numbers == [0]


@pytest.mark.parametrize("size", [1, 1000, 1_000_000])
@pytest.mark.parametrize("to", ["w0", "w1"])
def test_a_function_that_changes_its_arguments_changes_only_its_own(two: Any, size: int, to: str) -> None:
    assert two[0].do(call_that_changes, to, size)


# -- what functions raise ------------------------------------------------------------------------------------------


class Detailed(Exception):
    """Has attributes beside its text."""

    def __init__(self, text: str, code: int = 451) -> None:
        super().__init__(text)
        self.code = code


class Stubborn(Exception):
    """Cannot be made again from what it pickles."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)

    def __reduce__(self) -> Any:
        raise TypeError("not me")


def raise_detailed() -> None:
    error = Detailed("too hot")
    error.degrees = [1, 2]  # type: ignore[attr-defined]
    raise error


def raise_stubborn() -> None:
    raise Stubborn("never again", 3)


def raise_local() -> None:
    class Local(Exception):
        pass

    raise Local("of a class that nobody else has")


def raise_with(what: object) -> None:
    raise ValueError("no place for", what, 7)


def raise_with_reference(to: str) -> tuple[str, str, dict[str, Any]]:
    return caught(to, raise_with, rpc.RRef(5))


def raise_deep(depth: int = 900) -> None:
    if depth:
        raise_deep(depth - 1)
    raise ValueError("deep" + "!" * 1_000_000)


def raise_chain() -> None:
    try:
        raise KeyError("first")
    except KeyError as error:
        raise ValueError("second") from error


def leave_by_exit(code: Any) -> None:
    sys.exit(code)


def interrupt() -> None:
    raise KeyboardInterrupt


def caught(to: str, function: Any, *args: object) -> tuple[str, str, dict[str, Any]]:
    """The type, text and attributes of what a call raises."""
    try:
        rpc.rpc_sync(to, function, args)
    except Exception as error:
        rest = {name: value for name, value in vars(error).items() if name != "__notes__"}
        return type(error).__name__, str(error), {**rest, "notes": "".join(getattr(error, "__notes__", []))}
    raise AssertionError("it has not raised")


def test_an_exception_keeps_its_attributes_and_brings_the_remote_traceback(two: Any) -> None:
    kind, text, attributes = two[0].do(caught, "w1", raise_detailed)
    assert (kind, text) == ("Detailed", "too hot")
    assert attributes["code"] == 451 and attributes["degrees"] == [1, 2]
    assert "raise_detailed" in attributes["notes"] and str(two[1].pid) in attributes["notes"]


def test_an_exception_that_refuses_to_be_pickled_arrives_all_the_same(two: Any) -> None:
    kind, text, _rest = two[0].do(caught, "w1", raise_stubborn)
    assert kind == "Stubborn" and "never again" in text


def test_an_exception_of_a_class_that_nobody_else_has_brings_its_class(two: Any) -> None:
    kind, text, _rest = two[0].do(caught, "w1", raise_local)
    assert (kind, text) == ("Local", "of a class that nobody else has")


def test_an_exception_with_a_reference_becomes_a_remote_error_with_its_text(two: Any) -> None:
    kind, text, attributes = two[0].do(raise_with_reference, "w1")
    assert kind == "RemoteError" and "ValueError" in text and "no place for" in text and "RRef(" in text
    assert "raise_with" in attributes["notes"]


def test_a_huge_exception_arrives(two: Any) -> None:
    kind, text, attributes = two[0].do(caught, "w1", raise_deep)
    assert kind == "ValueError" and len(text) == 1_000_004 and "raise_deep" in attributes["notes"]


def test_the_cause_of_an_exception_is_in_its_notes(two: Any) -> None:
    kind, text, attributes = two[0].do(caught, "w1", raise_chain)
    assert (kind, text) == ("ValueError", "second") and "KeyError: 'first'" in attributes["notes"]


@pytest.mark.parametrize(("function", "args"), [(leave_by_exit, (3,)), (leave_by_exit, ("why",)), (interrupt, ())])
@pytest.mark.parametrize("to", ["w0", "w1"])
def test_a_function_that_wants_to_end_the_process_ends_its_call_only(
    two: Any, to: str, function: Any, args: tuple[object, ...]
) -> None:
    for error in two[0].do(in_each_way, to, function, *args):
        assert error != "no error" and ("SystemExit" in error or "KeyboardInterrupt" in error)


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


def wait_until_interrupted(way: str, to: str, mark: Path, go: Path) -> str:
    try:
        if way == "sync":
            rpc.rpc_sync(to, mark_and_wait, (mark, go), timeout=0)
        elif way == "async":
            rpc.rpc_async(to, mark_and_wait, (mark, go), timeout=0).wait()
        else:
            rpc.remote(to, mark_and_wait, (mark, go), timeout=0).to_here(timeout=0)
    except KeyboardInterrupt:
        return "interrupted"
    return "answered"


def mark_and_wait(mark: Path, go: Path) -> None:
    mark.touch()
    wait_for_file(go)


@pytest.mark.parametrize("way", ["sync", "async", "reference"])
def test_control_c_ends_the_wait_at_once_and_breaks_nothing(new_two: Any, tmp_path: Path, way: str) -> None:
    new_two[0].begin(wait_until_interrupted, way, "w1", tmp_path / "mark", tmp_path / "go")
    within(LIMIT_S, (tmp_path / "mark").exists, "the function has begun")
    new_two[0].send(signal.SIGINT)
    assert new_two[0].result() == "interrupted"
    assert new_two[0].do(call, "w1", echo, 5) == 5
    (tmp_path / "go").touch()


def interrupted(function: Callable[..., object], *args: object, **kwargs: Any) -> int:
    """How many threads are left after Ctrl-C in the function."""
    try:
        function(*args, **kwargs)
    except KeyboardInterrupt:
        within(LIMIT_S, lambda: num_threads() == 1, "its threads have ended")
        return num_threads()
    raise AssertionError("it was not interrupted")


@pytest.mark.parametrize("rank", [0, 1])
def test_control_c_while_others_are_awaited_leaves_nothing_and_init_may_be_called_again(
    real_workers: Workers, rank: int
) -> None:
    early = real_workers.start(f"w{rank}")
    early.begin(interrupted, join_alone, real_workers.url, early.name, rank, 2)
    within(LIMIT_S, lambda: _has_begun(early.pid), "it is about to join")
    early.send(signal.SIGINT)
    assert early.result() == 1
    late = real_workers.begin(1 - rank, 2)
    early.do(join_alone, real_workers.url, early.name, rank, 2)
    late.result()
    assert early.do(call, late.name, pid) == late.pid


def _has_begun(process: int) -> bool:
    """A driver of its hub is there, and the joining is under way in its main thread."""
    tasks = Path(f"/proc/{process}/task")
    return len(list(tasks.iterdir())) > 2


def test_control_c_in_shutdown_ends_it_and_the_others_go_on(real_workers: Workers) -> None:
    two = real_workers.group(2)
    two[1].begin(interrupted, leave)
    within(LIMIT_S, lambda: two[0].do(num_in_shutdown) == 1, "it waits for the other")
    two[1].send(signal.SIGINT)
    assert two[1].result() == 1
    for error in two[1].do(in_each_way, "w0", pid):
        assert "RPC has not been initialized" in error
    two[0].do(leave)


def num_in_shutdown() -> int:
    """As rank 0 knows, which lets them go together."""
    server = agents.current().group._server
    return 0 if server is None else len(server.machine.barrier.counts)


def test_a_shutdown_inside_a_remote_function_leaves_at_once_when_it_is_not_graceful(real_workers: Workers) -> None:
    two = real_workers.group(2)
    kind, text, _rest = two[0].do(caught, "w1", leave_now)
    assert kind == "WorkerLostError", text
    two[0].do(leave)


def leave_now() -> None:
    rpc.shutdown(graceful=False)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("how", ["leave_for_good", "ask_and_leave", "leave_on_the_loop"])
def test_a_graceful_shutdown_inside_a_remote_function_is_an_error_and_the_worker_stays(
    real_workers: Workers, how: str, dynamic: bool
) -> None:
    two = real_workers.group(2, dynamic=dynamic)
    function: Callable[..., object] = globals()[how]
    for to in ("w1", "w0"):
        kind, text, _rest = two[0].do(caught, to, function)
        assert kind == "RuntimeError" and f"shutdown() was called on worker {to} by a function that a call runs" in text
        assert "Return first" in text
    assert two[0].do(call, "w1", pid) == two[1].pid
    all_do(two, leave)


def leave_for_good() -> None:
    rpc.shutdown()


def ask_and_leave() -> None:
    """A thread that has waited for an answer is no driver's any more."""
    rpc.rpc_sync("w0", pid)
    rpc.shutdown()


async def leave_on_the_loop() -> None:
    rpc.shutdown()


# -- the end of the program ----------------------------------------------------------------------------------------


def keep_everything(to: str) -> None:
    KEPT.append(rpc.remote(to, torch.ones, (3,)))
    KEPT.append(rpc.RRef(torch.ones(3)))
    KEPT.append(rpc.rpc_async(to, echo, (torch.ones(3),)))
    KEPT.append(rpc.rpc_async(to, echo, (KEPT[0],)))
    KEPT.append(KEPT[2].then(lambda future: future.value()))


@pytest.mark.parametrize("ending", ["at once", "after a call", "with everything in use", "in a call of another"])
def test_a_program_that_ends_without_shutdown_ends_quietly_and_the_others_go_on(
    real_workers: Workers, tmp_path: Path, ending: str
) -> None:
    three = real_workers.group(3)
    if ending == "after a call":
        three[2].do(call, "w1", pid)
    elif ending == "with everything in use":
        three[2].do(keep_everything, "w1")
        three[1].do(keep_everything, "w2")
    elif ending == "in a call of another":
        three[1].begin(caught, "w2", mark_and_wait, tmp_path / "mark", tmp_path / "go")
        within(LIMIT_S, (tmp_path / "mark").exists, "the function has begun")
    assert three[2].leave() == 0
    assert three[2].printed == ""
    if ending == "in a call of another":
        assert three[1].result()[0] == "WorkerLostError"
    assert three[1].do(call, "w0", pid) == three[0].pid
    all_do(three[:2], leave)


# -- forks ---------------------------------------------------------------------------------------------------------


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index * index


def load(num_workers: int) -> list[int]:
    loader = DataLoader(Squares(), batch_size=2, num_workers=num_workers, multiprocessing_context="fork")
    return [int(x) for batch in loader for x in batch]


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_a_data_loader_may_have_processes_inside_a_remote_function(new_two: Any, to: str) -> None:
    for _ in range(2):
        assert new_two[0].do(call, to, load, 2) == [0, 1, 4, 9, 16, 25]


def calls_in_a_fork(to: str) -> list[str]:
    """How calls fail in a fork of this worker."""
    KEPT.append(rpc.remote(to, torch.ones, (3,)))
    KEPT[0].to_here()
    ways: list[Callable[[], object]] = [
        lambda: rpc.rpc_sync(to, pid),
        lambda: rpc.rpc_async(to, pid).wait(),
        lambda: rpc.remote(to, pid).to_here(),
        lambda: KEPT[0].to_here(),
    ]
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, "\n".join(error_of(way).partition("\n")[0] for way in ways).encode())
        KEPT.clear()
        gc.collect()
        os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with open(reads) as pipe:
        return pipe.read().split("\n")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("to", ["w0", "w1"])
def test_a_fork_of_a_worker_is_no_worker_and_is_told_so(new_two: Any, to: str, inside: bool) -> None:
    errors = new_two[0].do(call, "w1", calls_in_a_fork, to) if inside else new_two[0].do(calls_in_a_fork, to)
    own = to == ("w1" if inside else "w0")
    assert errors.pop() == "no error" if own else len(errors) == 4  # what is its own is in its memory
    for error in errors:
        assert error.startswith("ClosedError") and "was forked from worker" in error
    if not inside:
        assert new_two[0].do(kept_value).sum() == 3  # the fork has released nothing


def kept_value() -> Any:
    return KEPT[0].to_here()


def fork_while_the_hub_is_woken() -> None:
    """Another thread has the locks of the hub and of the link to oneself at that moment, as it seems to the child."""
    agent = agents.current()
    rpc.rpc_sync(agent.info.name, pid)
    with agent._hub._waking:
        child = os.fork()
        if child == 0:
            os._exit(0)
    try:
        within(LIMIT_S, lambda: os.waitpid(child, os.WNOHANG)[0], "the fork goes on")
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def test_a_fork_needs_no_lock_that_the_worker_holds(new_two: Any) -> None:
    new_two[0].do(fork_while_the_hub_is_woken)


def be_a_worker_in_a_fork(url: str) -> int:
    """The exit code of a fork of this worker, which joins a group of its own."""
    child = os.fork()
    if child == 0:
        try:
            join_alone(url, "child")
            same = rpc.rpc_sync("child", pid) == os.getpid()
            rpc.shutdown()
            os._exit(0 if same else 2)
        except BaseException:
            logging.exception("the child")
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_of_a_worker_may_become_a_worker_itself(new_two: Any, real_workers: Workers) -> None:
    assert new_two[0].do(be_a_worker_in_a_fork, real_workers.url + "-child") == 0, new_two[0].printed
