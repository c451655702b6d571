"""Invalid calls and settings: the error names the mistake, and both workers still work afterwards."""

import functools
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rpc_workers import Worker, Workers, call, error_of, errors_of_each_way, leave, mark_and_wait, pid

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded

# Any throughout: arguments and results of users' functions.

# -- workers and settings ------------------------------------------------------------------------------------------


def test_unknown_worker_is_an_error_that_lists_the_known_ones(pair: list[Worker]) -> None:
    for wrong in ("w9", 9, -1):
        for error in pair[0].do(errors_of_each_way, wrong, pid):
            assert error.startswith("RuntimeError") and "w0 (0), w1 (1)" in error and repr(wrong) in error


def test_worker_of_wrong_type_is_a_value_error(pair: list[Worker]) -> None:
    for wrong in (None, 1.0, True, b"w1", ["w1"]):
        for error in pair[0].do(errors_of_each_way, wrong, pid):
            assert error.startswith("ValueError") and str(wrong) in error


def test_call_before_init_and_after_shutdown_is_an_error(real_workers: Workers) -> None:
    alone = real_workers.start("w0")
    for _ in range(2):
        for error in alone.do(errors_of_each_way, "w0", pid):
            assert error.startswith("RuntimeError: RPC has not been initialized. Call fanwise.rpc.init_rpc first")
        with pytest.raises(RuntimeError, match="RPC has not been initialized"):
            alone.do(leave)
        real_workers.url += "-again"
        alone.do(join_alone, real_workers.url)
        alone.do(leave)


def join_alone(url: str, name: str = "w0", rank: Any = 0, size: Any = 1, **options: Any) -> None:
    settings = rpc.TensorPipeRpcBackendOptions(init_method=url, **options)
    rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=settings)


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"rank": 5, "size": 2}, ValueError, "rank 5"),
        ({"rank": -2, "size": 2}, ValueError, "-2"),
        ({"rank": 0, "size": 0}, ValueError, "0"),
        ({"rank": 0, "size": -1}, ValueError, "world_size"),
        ({"rank": "0"}, RuntimeError, "'0'"),
        ({"size": 1.5}, RuntimeError, "1.5"),
        ({"name": "a b"}, RuntimeError, "'a b'"),
        ({"rpc_timeout": -1}, ValueError, "-1"),
    ],
)
def test_process_may_try_again_after_an_invalid_setting(
    real_workers: Workers, settings: dict[str, Any], kind: Any, text: str
) -> None:
    alone = real_workers.start("w0")
    with pytest.raises(kind, match=text):
        alone.do(join_alone, real_workers.url, **settings)
    assert alone.do(threading.active_count) == 1
    alone.do(join_alone, real_workers.url)
    assert alone.do(call, "w0", pid) == alone.pid
    alone.do(leave)


# -- functions, arguments, time-outs -------------------------------------------------------------------------------


def test_function_that_is_not_callable_is_a_type_error_of_the_caller(pair: list[Worker]) -> None:
    for wrong in (None, 3, "pid"):
        for error in pair[0].do(errors_of_each_way, "w1", wrong):
            assert error.startswith("TypeError: function should be callable") and repr(wrong) in error


INVALID_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"args": 3}, r"arguments of pid, got one int\. One argument needs a comma:\n  wrong:  args=\(x\)"),
    ({"args": ("abc")}, "got one str"),
    ({"args": torch.ones(2)}, "got one Tensor"),
    ({"kwargs": ["x"]}, r"kwargs must be a dict of .*; got \['x'\]"),
    ({"timeout": None}, "TypeError: timeout must be a number of seconds, 0 for no limit; got None"),
    ({"timeout": "soon"}, "TypeError: timeout must be a number of seconds"),
    ({"timeout": float("nan")}, "ValueError: .*got nan"),
]


def errors_of_arguments(arguments: dict[str, Any]) -> list[str]:
    ways: list[Any] = [rpc.rpc_sync, rpc.remote]
    return [error_of(functools.partial(way, "w1", pid, **arguments)) for way in ways]


def test_invalid_arguments_of_a_call_are_refused(pair: list[Worker]) -> None:
    for arguments, text in INVALID_ARGUMENTS:
        for error in pair[0].do(errors_of_arguments, arguments):
            assert re.search(text, error), error
    assert pair[0].do(rpc.rpc_sync, "w1", max, [1, 2]) == 2, "a list is as good as a tuple"


def test_time_out_names_the_worker_and_the_limit(pair: list[Worker], tmp_path: Path) -> None:
    with pytest.raises(DeadlineExceeded, match=r"\(50 ms\).*w1") as raised:
        pair[0].do(call, "w1", mark_and_wait, tmp_path / "mark", tmp_path / "resume", timeout=0.05)
    assert isinstance(raised.value, RuntimeError) and isinstance(raised.value, TimeoutError)
    (tmp_path / "resume").touch()


def errors_of_timeout(timeout: float) -> list[str]:
    return [
        error_of(lambda: rpc.rpc_sync("w1", pid, timeout=timeout)),
        error_of(lambda: rpc.rpc_async("w1", pid, timeout=timeout).wait()),
        error_of(lambda: rpc.remote("w1", pid, timeout=timeout).to_here()),
    ]


def test_negative_time_out_has_expired_before_the_call(pair: list[Worker]) -> None:
    """As in torch, where the remainder of a time may be negative. Only -1 means the default."""
    for timeout in (-3, -0.5, float("-inf")):
        by_sync, by_future, by_reference = pair[0].do(errors_of_timeout, timeout)
        assert re.match(r"DeadlineExceeded: .*more than set timeout \(-.* ms\).*not sent", by_sync)
        assert by_future.startswith("DeadlineExceeded") and by_reference != "no error"
    assert pair[0].do(call, "w1", pid, timeout=-1) == pair[1].pid


def nested(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def errors_of_nesting(depth: int) -> list[str]:
    return [
        error_of(lambda: rpc.rpc_sync("w1", len, (nested(depth),))),
        error_of(lambda: rpc.rpc_sync("w1", nested, (depth,))),
    ]


def test_value_nested_too_deep_is_named_with_the_remedy(pair: list[Worker]) -> None:
    argument, result = pair[0].do(errors_of_nesting, 100_000)
    assert argument.startswith("NotSendableError: argument 0 (a builtins.list) of the call of len on w1 cannot be sent")
    assert result.startswith("NotSendableError: what nested returned (a builtins.list) cannot be sent")
    for error in (argument, result):
        assert "nested deeper than pickle can follow" in error and "sys.setrecursionlimit" in error


def an_operator() -> Any:
    return torch.ops.aten.add.Tensor


def a_lock() -> Any:
    return threading.Lock()


def a_generator() -> Iterator[int]:
    yield 1


def call_a_lambda_with_a_lock() -> None:
    lock = threading.Lock()
    rpc.rpc_sync("w1", lambda: lock)


def call_with_a_nested_lock() -> None:
    rpc.rpc_async("w1", max, (1,), {"value": {"deep": [threading.Lock()]}}).wait()


UNSENDABLE: dict[str, Callable[[], Any]] = {
    r"argument 1 \(a _thread.lock\) of the call of max on w1": lambda: rpc.remote("w1", max, (1, a_lock())).to_here(),
    r"argument 'value' \(a builtins.dict\) of the call of max on w1": call_with_a_nested_lock,
    r"the function .* of the call of .*<lambda> on w1": call_a_lambda_with_a_lock,
    r"the function .*OpOverload\) of the call of .*torch.ops.aten.add.Tensor cannot be found": lambda: rpc.rpc_sync(
        "w1", torch.ops.aten.add.Tensor, (torch.ones(2), torch.ones(2))
    ),
    r"argument 0 \(a torch.storage.UntypedStorage\) of the call of len on w1 .*Send a tensor": lambda: rpc.rpc_sync(
        "w1", len, (torch.ones(2).untyped_storage(),)
    ),
    r"what an_operator returned .* cannot be sent: torch.ops.aten.add.Tensor cannot be found": lambda: rpc.rpc_sync(
        "w1", an_operator
    ),
    r"what a_generator returned \(a builtins.generator\) cannot be sent": lambda: rpc.rpc_async(
        "w1", a_generator
    ).wait(),
    r"the value of RRef\(GloballyUniqueId\(created_on=0, local_id=\d+\)\) \(a _thread.lock\)": lambda: rpc.remote(
        "w1", a_lock
    ).to_here(),
}


def send_unsendable(pattern: str) -> str:
    return error_of(UNSENDABLE[pattern])


def test_value_that_cannot_be_sent_is_named(pair: list[Worker]) -> None:
    for pattern in UNSENDABLE:
        assert re.search(f"(?s)^NotSendableError: .*{pattern}", pair[0].do(send_unsendable, pattern)), pattern
