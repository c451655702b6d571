"""rpc.metrics(): counters of calls, bytes, refusals and workers."""

from typing import Any

import pytest
import torch
from rpc_workers import LIMIT_S, Worker, Workers, all_do, leave

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded, WireError
from fanwise.testing import within

# Any throughout: what users' functions take and return; numbers, texts and dicts of these.

# -- traffic -------------------------------------------------------------------------------------------------------


# -- real workers --------------------------------------------------------------------------------------------------


def wait_for_ever() -> None:
    torch.futures.Future[None]().wait()


def fail() -> None:
    raise ValueError("as asked")


def call(to: str, function: Any, *args: object, times: int = 1, timeout_s: float = LIMIT_S) -> Any:
    for _ in range(times):
        value = rpc.rpc_sync(to, function, args, timeout=timeout_s)
    return value


def call_many(to: str, times: int) -> None:
    torch.futures.wait_all([rpc.rpc_async(to, max, (1, 2)) for _ in range(times)])


def peer(name: str) -> dict[str, Any]:
    return dict(rpc.metrics()["peers"][name])


def own() -> dict[str, Any]:
    return {key: value for key, value in rpc.metrics().items() if key != "peers"}


def peers() -> list[str]:
    return list(rpc.metrics()["peers"])


def end() -> None:
    rpc.shutdown(graceful=False)


def agree(one: Worker, other: Worker) -> None:
    """Return True if each worker has received all bytes of the other."""

    def both() -> bool:
        there, back = one.do(peer, other.name), other.do(peer, one.name)
        bytes_agree = (there["bytes_sent"], there["bytes_received"]) == (back["bytes_received"], back["bytes_sent"])
        return bytes_agree and there["calls_made"] == back["calls_received"]

    within(LIMIT_S, both, "both say the same")


def test_two_workers_say_the_same_of_their_calls(real_workers: Workers) -> None:
    w0, w1 = real_workers.group(2)
    w0.do(call, "w1", max, 1, 2, times=30)
    w0.do(call_many, "w1", 20)
    w1.do(call, "w0", max, 1, 2, times=5)
    w0.do(call, "w0", max, 1, 2, times=7)
    with pytest.raises(ValueError, match="as asked"):
        w0.do(call, "w1", fail)
    agree(w0, w1)
    agree(w1, w0)
    numbers = w0.do(peer, "w1")
    assert (numbers["calls_made"], numbers["calls_received"], numbers["calls_open"]) == (51, 5, 0)
    assert w1.do(peer, "w0")["calls_failed"] == 1
    assert numbers["latency_s"]["count"] == sum(numbers["latency_s"]["buckets"].values()) == 51
    to_itself = w0.do(peer, "w0")
    assert (to_itself["calls_made"], to_itself["calls_received"]) == (7, 7)
    assert w0.do(own) == {
        "worker": "w0",
        "workers": 2,
        "workers_joined": 0,
        "workers_left": 0,
        "workers_lost": 0,
        "calls_running": 0,
        "calls_waiting": 0,
        "actor_calls_waiting": 0,
        "answers_waiting": 0,
    }
    all_do([w0, w1], leave)


def test_a_tensor_counts_with_all_its_bytes_also_when_it_goes_by_shared_memory(real_workers: Workers) -> None:
    w0, w1 = real_workers.group(2)
    for _ in range(3):
        w0.do(call, "w1", torch.sum, torch.zeros(1 << 20))
    agree(w0, w1)
    assert 12 << 20 < w0.do(peer, "w1")["bytes_sent"] < 13 << 20
    all_do([w0, w1], leave)


def test_what_is_late_open_or_refused_is_seen(real_workers: Workers) -> None:
    w0 = real_workers.begin(0, 2)
    w1 = real_workers.begin(1, 2, allow=[wait_for_ever, max], num_worker_threads=1)
    for worker in (w0, w1):
        worker.result()
    w0.do(call, "w1", max, 1, 2)  # a call that waits for its link until its time is over is never sent
    with pytest.raises(DeadlineExceeded):
        w0.do(call, "w1", wait_for_ever, timeout_s=0.05)
    with pytest.raises(WireError, match="allow-list"):
        w0.do(call, "w1", fail)
    numbers = w0.do(peer, "w1")
    assert (numbers["calls_made"], numbers["calls_timed_out"], numbers["latency_s"]["count"]) == (3, 1, 2)
    there = w1.do(peer, "w0")
    assert (there["calls_received"], there["calls_failed"], there["refused"]["not_allowed"]) == (3, 1, 1)
    for worker in (w0, w1):
        worker.do(end)


def test_the_numbers_of_a_worker_go_on_when_it_dies_and_comes_back(real_workers: Workers) -> None:
    w0, w1 = real_workers.group(2, dynamic=True)
    w0.do(call, "w1", max, 1, 2, times=10)
    w1.kill()
    within(LIMIT_S, lambda: w0.do(own)["workers_lost"] == 1, "its loss is counted")
    before = w0.do(peer, "w1")
    assert before["calls_made"] == 10 and before["latency_s"]["count"] == 10
    again = real_workers.join(1)
    within(LIMIT_S, lambda: w0.do(own)["workers_joined"] == 2, "it is back")
    w0.do(call, "w1", max, 1, 2, times=3)
    after = w0.do(peer, "w1")
    assert after["calls_made"] == 13 and after["bytes_sent"] > before["bytes_sent"]
    assert w0.do(peers) == ["w0", "w1"]
    again.do(end)
    within(LIMIT_S, lambda: w0.do(own)["workers_left"] == 1, "it has left")
    w0.do(end)


def test_a_process_that_is_no_worker_has_no_metrics() -> None:
    with pytest.raises(RuntimeError, match="init_rpc first"):
        rpc.metrics()
