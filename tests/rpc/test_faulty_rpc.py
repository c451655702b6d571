"""Faults on purpose: what is lost is repeated or fails at once, what is delayed comes late."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from faulty_rpc import Faults, FaultyTensorPipeRpcBackendOptions, call_types, message_types
from rpc_workers import LIMIT_S, Worker, Workers

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded
from fanwise.rpc import agent as agents
from fanwise.rpc.messages.ids import GlobalId, WorkerKey
from fanwise.rpc.references.protocol import Batch, ForkRequest, Release
from fanwise.rpc.references.rref import value_on_owner
from fanwise.testing import within

# Any: functions of users.

ME, YOU, ID = WorkerKey(0, 1), WorkerKey(1, 2), GlobalId(0, 1, 5)


def batch(*messages: Any) -> Batch:
    return Batch(ME, YOU, messages)


@pytest.mark.parametrize(
    ("function", "is_remote", "name"),
    [
        (torch.add, False, "SCRIPT_CALL"),
        (torch.add, True, "SCRIPT_REMOTE_CALL"),
        (len, False, "PYTHON_CALL"),
        (batch, True, "PYTHON_REMOTE_CALL"),
    ],
)
def test_calls_have_torchs_names(function: Callable[..., Any], is_remote: bool, name: str) -> None:
    assert call_types(function, is_remote=is_remote) == (name,)


def test_messages_have_the_names_of_all_they_carry() -> None:
    both = batch(ForkRequest(ID, ID), Release(ID, ID), Release(ID, ID))
    assert message_types("refs", (both,)) == {"RREF_FORK_REQUEST", "RREF_USER_DELETE"}
    assert message_types("autograd.release", (7,)) == {"CLEANUP_AUTOGRAD_CONTEXT_REQ"}
    assert message_types("hello", (7,)) == set()
    assert "SCRIPT_RREF_FETCH_CALL" in call_types(value_on_owner, is_remote=False)


def test_the_first_few_to_each_worker_are_lost() -> None:
    faults = Faults(["PYTHON_CALL"], {"SCRIPT_CALL": 1.5}, num_fail_sends=2)
    lost = [faults.drops_call(to, len, is_remote=False) for to in (1, 1, 2, 1, 2, 2)]
    assert lost == [True, True, True, False, True, False]
    assert not faults.drops_call(3, torch.add, is_remote=False)
    assert (faults.delay_s(torch.add, is_remote=False), faults.delay_s(len, is_remote=False)) == (1.5, 0.0)


def join_faulty(rank: int, size: int, url: str, **faults: Any) -> None:
    options = FaultyTensorPipeRpcBackendOptions(init_method=url, rpc_timeout=LIMIT_S, **faults)
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=size, rpc_backend_options=options)


def group(workers: Workers, size: int, **faults: Any) -> list[Worker]:
    processes = [workers.start(f"w{rank}") for rank in range(size)]
    for rank, process in enumerate(processes):
        process.begin(join_faulty, rank, size, workers.url, **faults)
    for process in processes:
        process.result()
    return processes


def total(rref: Any) -> float:
    return float(rref.to_here().sum())


def pass_on_and_leave(owner: str, to: str) -> float:
    rref = rpc.remote(owner, torch.ones, args=(3,))
    result: float = rpc.rpc_sync(to, total, args=(rref,))
    rpc._delete_all_user_and_unforked_owner_rrefs()
    return result


def test_references_outlive_lost_messages(real_workers: Workers) -> None:
    lost = ["RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE"]
    one, two, three = group(real_workers, 3, messages_to_fail=lost, num_fail_sends=1)
    assert one.do(pass_on_and_leave, "w1", "w2") == 3.0
    two.begin(rpc.shutdown)
    three.begin(rpc.shutdown)
    one.do(rpc.shutdown)
    two.result(), three.result()


def lost_creation(to: str) -> None:
    rref = rpc.remote(to, total, args=(3,))
    rref.to_here()


def lost_call(to: str) -> int:
    with pytest.raises(DeadlineExceeded, match="the call of total on w1 was dropped, on purpose"):
        rpc.rpc_sync(to, total, args=(3,))
    return rpc.rpc_sync(to, min, args=(2, 3))  # type: ignore[no-any-return]  # an int


def test_a_lost_call_fails_at_once(real_workers: Workers) -> None:
    one, _two = group(real_workers, 2, messages_to_fail=["PYTHON_CALL", "PYTHON_REMOTE_CALL"], num_fail_sends=1)
    assert one.do(lost_call, "w1") == 2
    with pytest.raises(RuntimeError, match="RRef creation via"):
        one.do(lost_creation, "w1")


def late(to: str) -> tuple[bool, int]:
    future = rpc.rpc_async(to, min, args=(2, 3), timeout=0.05)
    try:
        future.wait()
    except DeadlineExceeded:
        return True, rpc.rpc_sync(to, max, args=(2, 3), timeout=0)
    return False, 0


def test_a_delayed_call_is_late_and_comes(real_workers: Workers) -> None:
    one, _two = group(real_workers, 2, messages_to_delay={"SCRIPT_CALL": 0.5, "PYTHON_CALL": 0.5})
    assert one.do(late, "w1") == (True, 3)


def late_value_of_ones_own() -> int:
    """A creation that takes too long fails at the call and for the reference, not for who waits for the value."""
    rref = rpc.remote("w0", max, args=(2, 3), timeout=0.05)
    value = agents.current().references.value_of(rref._rref_id)
    with pytest.raises(DeadlineExceeded, match="RPC ran for more than"):
        rref._get_future().wait()
    with pytest.raises(DeadlineExceeded, match="RRef creation via"):
        rref.to_here()
    within(LIMIT_S, value.done, "the value came")
    debug_info = agents.current().references.debug_info
    within(LIMIT_S, lambda: debug_info()["num_owner_rrefs"] == "0", "nobody holds it")
    return int(value.wait())


def test_a_value_of_ones_own_that_is_late_comes_to_whoever_waits_for_it(real_workers: Workers) -> None:
    (one,) = group(real_workers, 1, messages_to_delay={"PYTHON_REMOTE_CALL": 0.5, "SCRIPT_REMOTE_CALL": 0.5})
    assert one.do(late_value_of_ones_own) == 3


def linked() -> list[bool]:
    agent = agents.current()
    return [agent.connections.get_open(worker.id) is not None for worker in agent.workers()]


def test_the_first_call_is_late_or_lost_on_purpose_only(real_workers: Workers) -> None:
    """Links are there from the beginning: a call that waits for one may run out of time before it has left."""
    for worker in group(real_workers, 3):
        assert worker.do(linked) == [True, True, True]
