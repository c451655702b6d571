"""Actors that are made again on real workers, which are killed: as often as promised, and no call runs twice."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded, OwnerLostError, WorkerLostError
from fanwise.rpc import agent as agents
from fanwise.rpc.actors.restarts import Restarts
from fanwise.rpc.references.orders import GlobalId, WorkerKey
from fanwise.testing import within
from fanwise.testing.rpc_workers import LIMIT_S, Worker, Workers, all_do, leave

# Any throughout: what users' functions take and return.


class Counter:
    """Writes each call down where it outlives its worker."""

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        self.value = start

    def add(self, what: Any) -> int:
        with self.path.open("a") as file:
            file.write(f"{what}\n")
        self.value += 1
        return self.value

    def die(self) -> None:
        os.kill(os.getpid(), 9)


HELD: list[Any] = []
BEGUN: list[Any] = []


def make(to: str, path: Path, restart: int, **kwargs: Any) -> None:
    HELD.append(rpc.remote(to, Counter, args=(path,), kwargs={"start": 10}, restart=restart, **kwargs))


def hand_to(to: str) -> None:
    rpc.rpc_sync(to, take, (HELD[0],))


def take(rref: Any) -> None:
    HELD.append(rref)


def add(what: Any, how: str = "rpc_sync", timeout: float = LIMIT_S) -> Any:
    found = getattr(HELD[0], how)(timeout=timeout).add(what)
    return found.wait() if how == "rpc_async" else found.to_here() if how == "remote" else found


def begin(*calls: Any, timeout: float = LIMIT_S) -> None:
    BEGUN.extend(HELD[0].rpc_async(timeout=timeout).add(what) for what in calls)


def outcomes() -> list[Any]:
    found = []
    for call in BEGUN:
        try:
            found.append(call.wait())
        except Exception as error:
            found.append(type(error).__name__)
    BEGUN.clear()
    return found


def die() -> str:
    try:
        HELD[0].rpc_sync().die()
    except WorkerLostError as error:
        return type(error).__name__
    return "alive"


def forget() -> None:
    HELD.clear()
    BEGUN.clear()
    gc.collect()


def num_there() -> int:
    return len(agents.current().workers())


def num_supervised() -> int:
    gc.collect()
    actors: Any = agents.current().actors
    return len(actors.supervision._supervised)


def lost_and_known(workers: list[Worker]) -> None:
    for worker in workers:
        within(LIMIT_S, lambda worker=worker: worker.do(num_there) == len(workers), "the death is known")  # type: ignore[misc]


def test_a_killed_actor_is_made_again_for_all_who_have_it_as_often_as_promised(
    real_workers: Workers, tmp_path: Path
) -> None:
    path = tmp_path / "calls"
    one, two, three = real_workers.group(3)
    one.do(make, "w2", path, 2, serial=True)
    one.do(hand_to, "w1")
    assert one.do(add, "a") == 11 and two.do(add, "b") == 12
    for again in range(2):
        one.do(begin, f"under way {again}")
        three.kill()
        assert one.do(outcomes)[0] in (13, 14, "WorkerLostError")
        lost_and_known([one, two])
        three = real_workers.join(2, 3, "w2")
        results = [one.do(add, f"c{again}"), two.do(add, f"d{again}", "rpc_async"), one.do(add, f"e{again}", "remote")]
        assert results == [11, 12, 13], "made again from the same arguments, and used by all"
    three.kill()
    lost_and_known([one, two])
    for worker in (one, two):
        with pytest.raises(OwnerLostError, match=r"\(Counter\), died or left, and the actor was made again"):
            worker.do(add, "never")
    calls = path.read_text().splitlines()
    assert len(calls) == len(set(calls)), "none has run twice"
    all_do([one, two], forget)
    assert one.do(num_supervised) == 0
    all_do([one, two], rpc.shutdown, False)


def test_calls_wait_in_their_order_until_the_actor_is_there_again_or_their_time_is_over(
    real_workers: Workers, tmp_path: Path
) -> None:
    path = tmp_path / "calls"
    one, two, three = real_workers.group(3)
    one.do(make, "w2", path, 1, serial=True)
    one.do(hand_to, "w1")
    one.do(add, "first"), two.do(add, "second")
    assert one.do(die) == "WorkerLostError"
    lost_and_known([one, two])
    with pytest.raises(DeadlineExceeded, match="no worker named w2 has joined in time: the call was not made"):
        two.do(add, "late", timeout=0.05)
    for worker in (one, two):
        worker.do(begin, "late too", timeout=0.05)
        worker.do(begin, *(f"{worker.name} {i}" for i in range(5)))
    within(LIMIT_S, lambda: all(worker.do(first_is_done) for worker in (one, two)), "the time of the first is over")
    three = real_workers.join(2, 3, "w2")
    found = [worker.do(outcomes) for worker in (one, two)]
    assert [each[0] for each in found] == ["DeadlineExceeded"] * 2
    assert sorted(found[0][1:] + found[1][1:]) == list(range(11, 21))
    calls = path.read_text().splitlines()
    assert [call for call in calls if call.startswith("w0")] == [f"w0 {i}" for i in range(5)]
    assert [call for call in calls if call.startswith("w1")] == [f"w1 {i}" for i in range(5)]
    assert not any(call.startswith("late") for call in calls)
    all_do([one, two], forget)
    all_do([one, two, three], leave)


def first_is_done() -> bool:
    return bool(BEGUN[0].done())


def test_an_actor_that_is_not_made_again_is_lost_and_so_is_one_whose_maker_died(
    real_workers: Workers, tmp_path: Path
) -> None:
    one, two, three, four = real_workers.group(4)
    two.do(make, "w2", tmp_path / "calls", 5)
    two.do(hand_to, "w3")
    four.do(add, "first")
    one.do(make, "w2", tmp_path / "calls", 0, serial=True)
    one.do(add, "second")
    two.kill()
    three.kill()
    lost_and_known([one, four])
    with pytest.raises(OwnerLostError, match="nobody makes the actor again"):
        one.do(add, "never")
    with pytest.raises(OwnerLostError, match="w2"):
        four.do(add, "never")
    with pytest.raises(ValueError, match=r"restart=1: worker w0 would make the actor again when it is lost"):
        one.do(make, "w0", tmp_path, 1)
    with pytest.raises(TypeError, match="restart must be an int, got 'often'"):
        one.do(make, "w3", tmp_path, "often")
    all_do([one, four], forget)
    all_do([one, four], rpc.shutdown, False)


def test_the_name_of_an_actor_that_is_made_again_leads_to_it_again(real_workers: Workers, tmp_path: Path) -> None:
    one, two, three = real_workers.group(3)
    one.do(make, "w2", tmp_path / "calls", 1, serial=True)
    one.do(hand_to, "w1")
    two.do(register)
    assert two.do(add_by_name, "a") == 11
    three.kill()
    lost_and_known([one, two])
    two.begin(add_by_name, "b")
    again = real_workers.join(2, 3, "w2")
    assert two.result() == 11 and again.do(add_by_name, "c") == 12
    all_do([one, two], forget)
    all_do([one, two, again], leave)


def register() -> None:
    rpc.register("counter", HELD[0])


def add_by_name(what: Any) -> int:
    return int(rpc.lookup("counter").rpc_sync().add(what))


def test_an_actor_is_made_again_once_for_each_loss_and_only_where_it_was() -> None:
    life = [WorkerKey(2, n) for n in range(5)]
    one = Restarts("w2", 2, GlobalId(0, 0, -1), life[0])
    assert one.knows(GlobalId(0, 0, -1)) and not one.there("w2", life[1]), "it lives"
    assert not one.gone(WorkerKey(1, 0))
    assert one.gone(life[0]) and not one.gone(life[0])
    assert not one.there("w1", WorkerKey(1, 1)) and one.there("w2", life[1]) and not one.there("w2", life[1])
    one.made(GlobalId(0, 0, -2), life[1])
    assert one.knows(GlobalId(0, 0, -2)) and not one.knows(GlobalId(0, 0, -1))
    assert one.gone(life[1]) and one.there("w2", life[2])
    assert one.gone(life[2]) and one.state == "over" and not one.there("w2", life[3])
