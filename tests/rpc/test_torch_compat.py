"""Names and functions that programs of torch use, as far as torch's own tests do not cover them."""

import pickle

import pytest
import torch
from rpc_workers import Worker, Workers, all_do, leave

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded, WorkerLostError
from fanwise.rpc import torch_compat


def test_private_names_of_torch_come_through_the_package() -> None:
    assert rpc._all_gather is torch_compat._all_gather
    assert (rpc.PyRRef, rpc.RpcAgent) == (rpc.RRef, rpc.TensorPipeAgent)
    with pytest.raises(AttributeError, match=r"module 'fanwise.rpc' has no attribute '_no_such_name'"):
        _ = rpc._no_such_name


def use_wait_all(to: str) -> tuple[list[int], list[int], bool]:
    results = torch.futures.wait_all([rpc.rpc_async(to, min, args=(1, 2)), rpc.rpc_async(to, max, args=(1, 2))])
    empty: list[int] = torch.futures.wait_all([])
    leave()
    return results, empty, torch.futures.wait_all.__module__ == "torch.futures"


def test_wait_all_of_torch_is_restored_by_shutdown(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    two.begin(leave)
    assert one.do(use_wait_all, "w1") == ([1, 2], [], True)


def names_in_profile(to: str) -> list[str]:
    with torch.autograd.profiler.profile() as profile:
        rpc.rpc_sync(to, min, args=(1, 2))
        rpc.rpc_async(to, torch.add, args=(torch.ones(1), 1)).wait()
        rpc.remote(to, min, args=(1, 2)).to_here()
    return sorted({event.name for event in profile.function_events if event.name.startswith("rpc_")})


def test_profiler_shows_calls_under_the_names_of_torch(pair: list[Worker]) -> None:
    names = pair[0].do(names_in_profile, "w1")
    assert {"rpc_sync#min(w0 -> w1)", "rpc_remote#min(w0 -> w1)"} <= set(names)
    assert any(name.startswith("rpc_async#") and name.endswith("add(w0 -> w1)") for name in names)


def test_serialized_value_can_only_be_unpickled_by_deserialize() -> None:
    data, tensors = torch_compat.serialize({"a": torch.ones(2), "b": 3})
    assert [tensor.tolist() for tensor in tensors] == [[1.0, 1.0]]
    value = torch_compat.deserialize(data, tensors)
    assert value["a"] is tensors[0] and value["b"] == 3
    with pytest.raises(RuntimeError, match="was loaded outside of a call"):
        pickle.loads(data)


# -- all_gather ----------------------------------------------------------------------------------------------------


def gather(value: int, names: list[str] | None = None) -> dict[str, int]:
    return rpc._all_gather(value, names)  # type: ignore[no-any-return]  # torch_compat's, through the package


def test_all_gather_raises_when_a_worker_is_lost(real_workers: Workers) -> None:
    one, two, three = real_workers.group(3)
    assert all_do([one, two, three], gather, 1)[0] == {"w0": 1, "w1": 1, "w2": 1}
    one.begin(gather, 2)
    two.begin(gather, 2)
    three.kill()
    for worker in (one, two):
        with pytest.raises(WorkerLostError, match="worker w2 was lost during an all_gather"):
            worker.result()


def gather_without_the_other() -> tuple[str, int]:
    with pytest.raises(DeadlineExceeded) as raised:
        rpc._all_gather(1, ["w0", "w1"], timeout=0.2)
    return str(raised.value), len(torch_compat._gatherer._rounds)


def gather_too_late() -> str:
    try:
        rpc._all_gather(2, ["w0", "w1"])
    except DeadlineExceeded as error:
        return str(error)
    return "gathered"


def test_all_gather_that_timed_out_is_an_error_for_late_workers_and_leaves_nothing(new_pair: list[Worker]) -> None:
    text, num_rounds = new_pair[0].do(gather_without_the_other)
    assert "only received values of ['w0']" in text and num_rounds == 0
    assert "round 0 of an all_gather of w0,w1 has timed out here" in new_pair[1].do(gather_too_late)
    assert all_do(new_pair, gather, 5) == [{"w0": 5, "w1": 5}] * 2
