"""Actors that are made again on real workers, which are killed: as often as promised, and no call runs twice."""

import gc
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fanwise.rpc as rpc
from fanwise.base.errors import (
    DeadlineExceeded,
    NotSendableError,
    OwnerLostError,
    WindowFullError,
    WorkerLostError,
)
from fanwise.links.flow_control.credits import OVERDRAFT
from fanwise.rpc import agent as agents
from fanwise.rpc.actors.calls import Actors
from fanwise.rpc.actors.restarts import Restarts
from fanwise.rpc.actors.supervision import Recipe, Supervision
from fanwise.rpc.membership.members import Lost, Member
from fanwise.rpc.references.orders import Fork, GlobalId
from fanwise.rpc.worker_info import WorkerInfo, WorkerKey
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


def begin_and_change() -> None:
    """Calls whose arguments are others before they leave; and one that cannot leave."""
    tensor, text, weight = torch.ones(2), ["as it was"], torch.ones(1, requires_grad=True)
    BEGUN.append(HELD[0].rpc_async(timeout=LIMIT_S).add((tensor, text, HELD[0], weight)))
    tensor.add_(1)
    text[0] = "changed"
    with pytest.raises(NotSendableError, match=r"argument 0 \(a builtins.function\) of the call of add on w2"):
        HELD[0].rpc_async(timeout=LIMIT_S).add(lambda: 1)


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
    two.do(begin_and_change)
    within(LIMIT_S, lambda: all(worker.do(first_is_done) for worker in (one, two)), "the time of the first is over")
    three = real_workers.join(2, 3, "w2")
    found = [worker.do(outcomes) for worker in (one, two)]
    assert [each[0] for each in found] == ["DeadlineExceeded"] * 2
    assert sorted(found[0][1:] + found[1][1:]) == list(range(11, 22))
    calls = path.read_text().splitlines()
    assert [call for call in calls if call.startswith("w0")] == [f"w0 {i}" for i in range(5)]
    assert [call for call in calls if call.startswith("w1")] == [f"w1 {i}" for i in range(5)]
    assert not any(call.startswith("late") for call in calls)
    (changed,) = [call for call in calls if call.startswith("(")]
    assert changed.startswith("(tensor([1., 1.]), ['as it was'], OwnerRRef(") and changed.endswith(
        "tensor([1.], requires_grad=True))"
    )
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


def call_for_ever(number: int, path: Path) -> int:
    """Calls, each with a number of its own, one after another until the actor is lost for good. How many failed."""
    failed = 0
    for i in range(1_000_000):
        try:
            answer = HELD[0].rpc_sync(timeout=LIMIT_S).add(f"{number}/{i}")
        except OwnerLostError:
            return failed
        except WorkerLostError:
            failed += 1
        else:
            with path.open("a") as file:
                file.write(f"{number}/{i} {answer}\n")
    raise AssertionError("it never ends")


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.soak)])
def test_no_call_runs_or_is_answered_twice_however_often_the_actor_is_killed_under_load(
    real_workers: Workers, tmp_path: Path, kills: int
) -> None:
    ran, answered = tmp_path / "ran", tmp_path / "answered"
    one, two, three = real_workers.group(3)
    one.do(make, "w2", ran, kills - 1, serial=True)
    one.do(hand_to, "w1")
    for number, worker in enumerate((one, two)):
        worker.begin(call_for_ever, number, answered)
    for kill in range(kills):
        lines = size(answered)
        within(LIMIT_S, lambda lines=lines: size(answered) > lines + 20, "both go on")  # type: ignore[misc]
        three.kill()
        if kill < kills - 1:
            three = real_workers.join(2, 3, "w2")
    failed = one.result() + two.result()
    calls, answers = ran.read_text().splitlines(), [line.split()[0] for line in answered.read_text().splitlines()]
    assert len(calls) == len(set(calls)) and len(answers) == len(set(answers))
    assert set(answers) <= set(calls) and len(calls) - len(answers) <= failed
    for caller in ("0/", "1/"):
        mine = [int(call.removeprefix(caller)) for call in calls if call.startswith(caller)]
        assert mine == sorted(mine)
    all_do([one, two], forget)
    all_do([one, two], rpc.shutdown, False)


def size(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


class PlayedReference:
    """Of an actor on worker 2."""

    def __init__(self, number: int, life: int) -> None:
        self._rref_id = GlobalId(0, 100, number)
        self._user: Any = SimpleNamespace(
            fork=Fork(self._rref_id, self._rref_id, WorkerKey(2, life), WorkerKey(0, 100)), deleted=False
        )
        self._creation = self._error = self._kind = self._value = None


def test_who_hears_of_a_loss_before_the_supervisor_waits_for_the_next_life() -> None:
    there = {2: Member("w2", 2, 1, "", "", 1)}
    made: Any = [PlayedReference(-1, 1), PlayedReference(-2, 2)]
    references = SimpleNamespace(
        owner_of=lambda fork: WorkerInfo("w2", 2), new_actor_id=lambda: None, remote=lambda *_, **__: made[1]
    )
    group = SimpleNamespace(members=lambda: there, on_event=[])
    agent: Any = SimpleNamespace(references=references, group=group, outside=lambda job: job())
    supervision = Supervision(agent)
    supervision.supervise(made[0], Recipe((Counter, (), {}), -1.0, 1), 1)
    early = supervision.where(GlobalId(0, 100, -1))
    assert not early.done()
    old, there[2] = there[2], Member("w2", 2, 2, "", "", 1)
    group.on_event[0](Lost(old, "killed"))
    assert early.done() and early.value() is made[0] and made[0]._rref_id == GlobalId(0, 100, -2)
    assert supervision.where(GlobalId(0, 100, -1)).done(), "who knows the life before is told at once"
    assert not supervision.where(GlobalId(0, 100, -2)).done()


class MovedMeanwhile:
    """A reference to an actor that is made again, on another worker, whenever somebody has looked where it is."""

    def __init__(self) -> None:
        self._life = 0

    @property
    def _user(self) -> Any:
        self._life += 1
        return PlayedReference(-self._life, self._life)._user

    def owner(self) -> WorkerInfo:
        return WorkerInfo("w", int(self._user.fork.owner.incarnation))


@pytest.mark.parametrize("api", ["rpc_sync", "rpc_async", "remote"])
def test_a_call_goes_to_the_worker_that_has_the_actor_of_its_number(api: Any) -> None:
    calls: list[tuple[WorkerInfo, Any]] = []

    def call(to: WorkerInfo, *_: Any, address: Any, **__: Any) -> Any:
        calls.append((to, address.actor))
        return torch.futures.Future()

    references = SimpleNamespace(owner_of=lambda fork: WorkerInfo("w", fork.owner.incarnation), remote=call)
    agent: Any = SimpleNamespace(references=references, call=call, call_sync=call, info=WorkerInfo("me", 0))
    actors = Actors(agent)
    actors.supervision = SimpleNamespace(is_lost=lambda *_: False)  # type: ignore[assignment]
    actors._check_is_not_its_own = lambda *_: None  # type: ignore[method-assign]
    actors.call(MovedMeanwhile(), api, "add", (), {}, timeout_s=0.0)  # type: ignore[arg-type]
    [(to, number)] = calls
    assert number.local_id == -to.id, "the number is that of the life on that worker"


def begin_large(number: int, timeout: float) -> list[bool]:
    """Calls of 100 KB each. Which of them had failed when rpc_async returned."""
    data = "x" * 100_000
    BEGUN.extend(HELD[0].rpc_async(timeout=timeout).add(f"{i}{data}") for i in range(number))
    return [call.done() for call in BEGUN]


def num_bytes_waiting() -> int:
    supervision = agents.current().actors.supervision
    return sum(queue.num_bytes for queue in supervision._moving.values())


def call_where_answers_are_read() -> tuple[int, str]:
    """How many calls of 100 KB a thread that must not wait could make, and why no more."""
    made, said, done = 0, "", threading.Event()

    def ask() -> None:
        agents.current().request(1, "devices").add_done_callback(call)

    def call(_: object) -> None:
        nonlocal made, said
        if agents.current().may_wait():  # as the answer was here before the callback, or its link was new
            ask()
            return
        try:
            while made < 20:
                BEGUN.append(HELD[0].rpc_async(timeout=LIMIT_S).add("y" * 100_000))
                made += 1
        except WindowFullError as error:
            said = str(error)
        finally:
            done.set()

    ask()
    assert done.wait(LIMIT_S)
    return made, said


def test_few_bytes_of_calls_wait_for_an_actor_without_their_caller_and_the_rest_with_it(
    real_workers: Workers, tmp_path: Path
) -> None:
    path = tmp_path / "calls"
    one, two, three = real_workers.group(3)
    one.do(make, "w2", path, 1, serial=True)
    assert one.do(add, "first") == 11
    three.kill()
    lost_and_known([one, two])
    assert one.do(begin_large, 6, 0.2)[2:] == [True] * 4, "rpc_async has waited until their time was over"
    assert one.do(outcomes) == ["DeadlineExceeded"] * 6
    assert one.do(num_bytes_waiting) == 0, "what failed keeps nothing"
    made, said = one.do(call_where_answers_are_read)
    assert made == 2 and "the call of add was not made: its actor's worker, w2, is away" in said
    assert 200_000 < one.do(num_bytes_waiting) <= OVERDRAFT
    one.begin(begin_large, 6, LIMIT_S)
    three = real_workers.join(2, 3, "w2")
    assert one.result() and one.do(outcomes) == list(range(11, 19)), "in their order"
    assert [line[0] for line in path.read_text().splitlines()[1:]] == list("yy012345")
    all_do([one], forget)
    all_do([one, two, three], leave)


def add_as_it_comes_back(how: str) -> int:
    """A call that saw others wait for the actor, which have all left by the time it would wait behind them."""
    supervision, seen = agents.current().actors.supervision, list[object]()
    is_lost = supervision.is_lost

    def is_lost_at_first(*args: Any) -> bool:
        seen.append(args)
        return len(seen) == 1 or is_lost(*args)

    supervision.is_lost = is_lost_at_first
    try:
        return int(add("late", how, LIMIT_S))
    finally:
        supervision.is_lost = is_lost


@pytest.mark.parametrize("how", ["rpc_sync", "rpc_async", "remote"])
def test_a_call_that_would_wait_for_an_actor_which_has_just_come_back_is_made(
    how: str, real_workers: Workers, tmp_path: Path
) -> None:
    one, two = real_workers.group(2)
    one.do(make, "w1", tmp_path / "calls", 1)
    assert one.do(add, "first") == 11
    assert one.do(add_as_it_comes_back, how) == 12
    all_do([one], forget)
    all_do([one, two], leave)


class Doubling:
    def double(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def gradient_through_an_actor_that_is_away() -> list[float]:
    """Of a weight, by a call that is made while the actor's worker is away."""
    weight = torch.tensor([1.0, 3.0], requires_grad=True)
    with rpc.autograd.context() as context:
        twice = HELD[0].rpc_async(timeout=LIMIT_S).double(weight * weight).wait()
        rpc.autograd.backward(context, [twice.sum()])
        return list(rpc.autograd.get_gradients(context)[weight].tolist())


def hear_of_losses_late() -> None:
    """What is noted of a lost worker is noted when calls already see that it is gone."""

    def wait(_worker: WorkerInfo, _incarnation: int) -> None:
        threading.Event().wait(0.5)

    agents.current().on_lost.insert(0, wait)


# Late: what calls see at once, that the worker is gone, autograd is told after they were made.
@pytest.mark.parametrize("when", ["at once", "late"])
def test_gradients_go_through_an_actor_that_was_away_when_it_was_called(when: str, real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.do(make_doubling, "w1")
    assert one.do(gradient_through_an_actor_that_is_away) == [4.0, 12.0]
    if when == "late":
        one.do(hear_of_losses_late)
    two.kill()
    lost_and_known([one])
    one.begin(gradient_through_an_actor_that_is_away)
    two = real_workers.join(1, 2, "w1")
    assert one.result() == [4.0, 12.0]
    one.do(forget)
    all_do([one, two], leave)


def make_doubling(to: str) -> None:
    HELD.append(rpc.remote(to, Doubling, serial=True, restart=1))
