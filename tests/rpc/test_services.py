"""Services by name between real workers: found from everywhere, while the worker that keeps the value lives."""

import gc
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from torch.futures import Future

import fanwise.rpc as rpc
from fanwise.base.errors import DeadlineExceeded
from fanwise.rpc import agent as agents
from fanwise.rpc.membership.members import Member
from fanwise.rpc.references.orders import GlobalId
from fanwise.rpc.services.registry import Services
from fanwise.rpc.worker_info import WorkerInfo, WorkerKey
from fanwise.testing import within
from fanwise.testing.rpc_workers import LIMIT_S, Worker, Workers, all_do, leave

# Any throughout: what users' values are.

FOUND: list[Any] = []


class Store:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, item: Any) -> int:
        self.items.append(item)
        return len(self.items)


def register(name: str, value: Any = None, **kwargs: Any) -> None:
    rpc.register(name, Store() if value is None else value, **kwargs)


def register_at(name: str, to: str, **kwargs: Any) -> None:
    rpc.register(name, rpc.remote(to, Store, **kwargs))


def put(name: str, item: Any, timeout: float = -1.0) -> int:
    found = rpc.lookup(name, timeout=timeout)
    return int(found.rpc_sync().put(item))


def keep(name: str) -> str:
    FOUND.append(rpc.lookup(name))
    return str(FOUND[-1].owner_name())


def put_in_kept(item: Any) -> int:
    return int(FOUND[-1].rpc_sync().put(item))


def forget() -> None:
    FOUND.clear()
    gc.collect()


def num_owned() -> int:
    gc.collect()
    return int(agents.current().references.debug_info()["num_owner_rrefs"])


def num_lookups() -> int:
    """At the coordinator: how many wait."""
    directory = agents.current().services._directory
    return 0 if directory is None else len(directory._asked)


def end(workers: list[Worker]) -> None:
    all_do(workers, forget)
    all_do(workers, leave)


def test_a_name_leads_to_its_value_from_everywhere(real_workers: Workers) -> None:
    workers = one, two, three = real_workers.group(3)
    two.do(register, "store")
    assert [worker.do(put, "store", i) for i, worker in enumerate(workers)] == [1, 2, 3]
    assert [worker.do(keep, "store") for worker in workers] == ["w1"] * 3
    one.do(register_at, "at three", "w2", serial=True)
    assert two.do(put, "at three", 1) == 1
    assert two.do(keep, "at three") == "w2"
    all_do(workers, forget)
    within(LIMIT_S, lambda: three.do(put, "at three", 2) == 2, "it keeps its value while nobody else refers to it")
    end(workers)


def test_a_name_that_is_taken_is_refused_and_free_again_when_it_was_given_up(real_workers: Workers) -> None:
    workers = one, two, three = real_workers.group(3)
    two.do(register, "a 'strange' name\n")
    for worker in workers:
        with pytest.raises(ValueError, match=r"service .a 'strange' name.n. is taken: worker w1 .rank 1"):
            worker.do(register, "a 'strange' name\n")
    with pytest.raises(ValueError, match=r"taken: worker w1"):
        three.do(register_at, "a 'strange' name\n", "w0")
    three.do(rpc.unregister, "a 'strange' name\n")
    with pytest.raises(LookupError, match=r"no service 'other' is registered; there is none"):
        one.do(rpc.unregister, "other")
    one.do(register, "a 'strange' name\n")
    assert two.do(keep, "a 'strange' name\n") == "w0"
    for wrong, error in (("", ValueError), ("x" * 257, ValueError), (3, TypeError)):
        with pytest.raises(error):
            one.do(rpc.lookup, wrong)
    end(workers)


def test_who_looks_for_a_name_waits_until_it_is_registered(real_workers: Workers) -> None:
    workers = one, two, three = real_workers.group(3)
    for i, worker in enumerate((two, three)):
        worker.begin(put, "late", i)
    within(LIMIT_S, lambda: one.do(num_lookups) == 2, "both wait")
    one.do(register, "late")
    assert {two.result(), three.result()} == {1, 2}
    two.do(register, "other")
    with pytest.raises(DeadlineExceeded, match=r"no service 'never' was .* within 0.1 s; there are 'late', 'other'"):
        three.do(put, "never", 1, timeout=0.1)
    end(workers)


def test_names_end_with_the_worker_that_keeps_the_value_and_not_with_the_one_that_registered_it(
    real_workers: Workers,
) -> None:
    one, two, three, four = real_workers.group(4, dynamic=True)
    four.do(register_at, "at two", "w1")
    four.do(register, "at four")
    four.do(leave)
    assert one.do(put, "at two", 1) == 1
    with pytest.raises(DeadlineExceeded, match=r"no service 'at four' was .*; there are 'at two'\."):
        one.do(put, "at four", 1, timeout=0.1)
    two.kill()
    with pytest.raises(DeadlineExceeded, match=r"no service 'at two' was registered within 1 s; there is none"):
        three.do(put, "at two", 1, timeout=1.0)
    again = real_workers.join(1, None, "w1")
    again.do(register, "at two")
    assert three.do(put, "at two", 1) == 1
    end([one, again, three])


def test_names_outlive_the_coordinator_and_who_waits_goes_on_waiting(real_workers: Workers) -> None:
    one, two, three, four = real_workers.group(4)
    two.do(register, "at two")
    three.do(register, "at three")
    one.do(register, "at one")
    four.begin(put, "late", 1)
    within(LIMIT_S, lambda: one.do(num_lookups) == 1, "it waits")
    one.kill()
    with pytest.raises(ValueError, match=r"taken: worker w1"):
        three.do(register, "at two")
    assert three.do(put, "at two", 1) == two.do(put, "at three", 1) == 1
    three.do(register, "at one")
    two.do(register, "late")
    assert four.result() == 1
    end([two, three, four])


def test_with_an_allow_list_names_lead_to_what_is_allowed(real_workers: Workers) -> None:
    open_one, strict = real_workers.begin(0, 2), real_workers.begin(1, 2, allow=[Store])
    open_one.result(), strict.result()
    open_one.do(register_at, "store", "w1")
    assert open_one.do(put, "store", 1) == strict.do(put, "store", 2) - 1 == 1
    strict.do(rpc.unregister, "store")
    end([open_one, strict])


def cancel_a_lookup(to: str) -> None:
    call = rpc.rpc_async(to, put, ("nobody registers this", 1, 1000.0), timeout=0)
    within(LIMIT_S, lambda: num_lookups() == 1, "it waits")
    call.cancel()


def test_a_lookup_that_was_given_up_is_soon_forgotten_and_keeps_no_shutdown_waiting(real_workers: Workers) -> None:
    one, two = real_workers.group(2)
    one.do(cancel_a_lookup, "w1")
    within(LIMIT_S, lambda: one.do(num_lookups) == 0, "it has been forgotten")
    end([one, two])


class PlayedAgent:
    """One worker, the coordinator of itself; its requests are answered by the test."""

    def __init__(self) -> None:
        self.info, self.incarnation, self.timeout_s, self.is_closed, self.has_joined = ME, 100, 30.0, False, True
        member = Member("w0", 0, 100, "", "", 1)
        self.group = SimpleNamespace(members=lambda: {0: member}, coordinator=100, has_left=False, on_event=[])
        self.is_elsewhere = False
        self.asked: list[tuple[str, Future[Any]]] = []

    def on(self, method: str, handler: Callable[..., Any]) -> None: ...

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def request(self, to: int, method: str, *args: object) -> "Future[Any]":
        self.asked.append((method, Future()))
        if self.is_elsewhere:
            self.asked[-1][1].set_result(("elsewhere", ()))
        return self.asked[-1][1]


ME = WorkerInfo("w0", 0)
GRANTED = ("taken", WorkerKey(0, 100))


def test_a_name_that_was_granted_before_another_coordinator_asked_for_names_is_reserved_again() -> None:
    agent: Any = PlayedAgent()
    services = Services(agent)
    value: Any = SimpleNamespace(_rref_id=GlobalId(0, 100, 1))
    register = threading.Thread(target=services.hold, args=("x", value, None))
    register.start()
    within(LIMIT_S, lambda: len(agent.asked) == 1, "it has asked")
    assert services._on_names(ME) == [], "it is not its own yet"
    agent.asked[0][1].set_result(GRANTED)
    within(LIMIT_S, lambda: len(agent.asked) == 2, "it asks the other one")
    agent.asked[1][1].set_result(GRANTED)
    register.join(LIMIT_S)
    assert services._on_names(ME) == ["x"] and services.hand_out("x") is value
    assert [method for method, _ in agent.asked] == ["services.reserve"] * 2


def test_a_name_that_was_not_granted_in_time_is_given_back() -> None:
    agent: Any = PlayedAgent()
    agent.is_elsewhere, services, value = True, Services(agent), SimpleNamespace()
    with pytest.raises(DeadlineExceeded, match=r"has not answered in time about the service 'x'"):
        services.hold("x", value, services._now_s())  # type: ignore[arg-type]  # a reference
    assert [method for method, _ in agent.asked] == ["services.reserve", "services.drop"]


def test_who_is_led_to_a_name_before_its_owner_has_heard_that_it_was_granted_gets_its_value() -> None:
    agent: Any = PlayedAgent()
    services = Services(agent)
    value: Any = SimpleNamespace(_rref_id=GlobalId(0, 100, 1))
    register = threading.Thread(target=services.hold, args=("x", value, None))
    register.start()
    within(LIMIT_S, lambda: len(agent.asked) == 1, "it has asked")
    assert services.hand_out("x") is value, "the coordinator has granted it, and told who looked for it first"
    agent.asked[0][1].set_result(GRANTED)
    register.join(LIMIT_S)
    assert services.hand_out("x") is value
    assert [method for method, _ in agent.asked] == ["services.reserve"], "it was not given up"


def test_while_a_name_is_reserved_or_given_up_nobody_else_here_takes_it() -> None:
    agent: Any = PlayedAgent()
    services = Services(agent)
    value: Any = SimpleNamespace(_rref_id=GlobalId(0, 100, 1))
    register = threading.Thread(target=services.hold, args=("x", value, None))
    register.start()
    within(LIMIT_S, lambda: len(agent.asked) == 1, "it has asked")
    with pytest.raises(ValueError, match="the service 'x' is taken: worker w0"):
        services.hold("x", value, services._now_s() + 1.0)
    agent.asked[0][1].set_result(GRANTED)
    register.join(LIMIT_S)
    release = threading.Thread(target=services.release, args=("x",))
    release.start()
    within(LIMIT_S, lambda: len(agent.asked) == 2, "it has asked")
    with pytest.raises(ValueError, match="the service 'x' is taken: worker w0"):
        services.hold("x", value, services._now_s() + 1.0)
    assert services.hand_out("x") is None and services._on_names(ME) == []
    assert release.is_alive(), "the name is free when the coordinator knows"
    agent.asked[1][1].set_result(("dropped", ()))
    release.join(LIMIT_S)
    assert [method for method, _ in agent.asked] == ["services.reserve", "services.drop"]
    assert services._asking == {}
