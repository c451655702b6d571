"""What a worker says of itself to a board: rates between two looks, small in any group; for as long as it is one."""

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.base.errors import ClosedError
from fanwise.links.status_files import Status, ask_for_statuses, statuses
from fanwise.rpc import publishing
from fanwise.rpc.rates import said
from fanwise.testing import within
from fanwise.testing.rpc_workers import LIMIT_S, Workers, all_do, leave

# Any throughout: numbers, texts and dicts of these.

COUNTED = ("calls_made", "calls_received", "calls_failed", "calls_timed_out", "bytes_sent", "bytes_received")
WAITING = ("calls_open", "calls_waiting_for_link", "calls_waiting_for_room", "bytes_to_send", "bytes_not_begun")
QUEUES = ("calls_running", "calls_waiting", "actor_calls_waiting", "answers_waiting")
HEAD = {"workers": 3, "workers_lost": 1, **dict.fromkeys(QUEUES, 2)}


def peer(number: int) -> dict[str, int]:
    return {**dict.fromkeys(COUNTED, number), **dict.fromkeys(WAITING, 1)}


def test_rates_are_of_the_time_between_and_a_new_peer_begins_at_nothing() -> None:
    before = {**HEAD, "peers": {"w0": peer(10), "gone": peer(5)}}
    now = {**HEAD, "peers": {"w0": peer(30), "w1": peer(8)}}
    found = said(now, before, 2.0)
    assert found["a_second"] == dict.fromkeys(COUNTED, 14.0) and found["since"] == dict.fromkeys(COUNTED, 38)
    assert found["peers"]["w0"]["calls_made"] == 10.0 and found["peers"]["w1"]["calls_made"] == 4.0
    assert list(found["peers"]) == ["w0", "w1"] and found["calls_open"] == 2
    assert {what: found[what] for what in HEAD} == HEAD


@given(st.dictionaries(st.integers(0, 400), st.integers(0, 1000), min_size=65, max_size=300))
def test_of_many_peers_the_busiest_are_shown_and_all_of_them_counted(made: dict[int, int]) -> None:
    now = {**HEAD, "peers": {f"w{number}": peer(calls) for number, calls in made.items()}}
    found = said(now, {**HEAD, "peers": {}}, 1.0)
    assert len(found["peers"]) == 64 and found["num_peers"] == len(made)
    assert found["a_second"]["calls_made"] == sum(made.values())
    shown = [values["calls_made"] for values in found["peers"].values()]
    assert shown == sorted(made.values(), reverse=True)[:64]


def workers_that_say_something() -> dict[str, Status]:
    return {status.body["worker"]: status for status in statuses() if status.kind == "rpc"}


def call(to: str, times: int) -> None:
    import fanwise.rpc as rpc

    for _ in range(times):
        rpc.rpc_sync(to, max, (1, 2), timeout=LIMIT_S)


def test_the_thread_runs_only_while_a_board_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looking = threading.Event()

    def no_metrics(_: object) -> None:
        raise ClosedError("there is no agent")

    def runs() -> bool:
        return any(thread.name == "rpc status" for thread in threading.enumerate())

    monkeypatch.setattr(publishing, "metrics_of", no_metrics)
    file = SimpleNamespace(is_wanted=looking.is_set, close=lambda: None)
    monkeypatch.setattr(publishing, "StatusFile", lambda kind: file)
    jobs: list[Callable[[], None]] = []
    agent: Any = SimpleNamespace(later=lambda delay_s, job: jobs.append(job))
    publisher = publishing.Publisher(agent, "group")
    jobs.pop()()
    assert not runs() and len(jobs) == 1, "it looks again"
    looking.set()
    jobs.pop()()
    assert runs() and not jobs
    looking.clear()
    within(LIMIT_S, lambda: bool(jobs), "it has seen that nobody looks any more")
    within(LIMIT_S, lambda: not runs(), "the thread has ended")
    publisher.close()
    jobs.pop()()
    assert not jobs and not runs()


def test_workers_say_what_they_do_until_they_leave(real_workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", tempfile.gettempdir())  # as the nursery has it
    ask_for_statuses()
    w0, w1 = real_workers.group(2)
    within(LIMIT_S, lambda: len(workers_that_say_something()) == 2, "both say something")

    def has_called() -> bool:
        w0.do(call, "w1", 50)
        return bool(workers_that_say_something()["w0"].body["a_second"]["calls_made"] > 0)

    within(LIMIT_S, has_called, "calls are seen")
    first, second = (workers_that_say_something()[name] for name in ("w0", "w1"))
    assert first.body["group"] == second.body["group"] and first.body["rank"] == 0 and first.pid != second.pid
    assert first.body["workers"] == 2 and next(iter(first.body["peers"])) == "w1"
    assert [first.body["is_coordinator"], second.body["is_coordinator"]].count(True) == 1
    all_do([w0, w1], leave)
    assert workers_that_say_something() == {}
    Path(tempfile.gettempdir(), "fanwise", "status").rmdir()


def test_a_worker_that_is_killed_vanishes(real_workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", tempfile.gettempdir())
    ask_for_statuses()
    w0, w1 = real_workers.group(2, dynamic=True)
    within(LIMIT_S, lambda: len(workers_that_say_something()) == 2, "both say something")
    w1.kill()
    within(LIMIT_S, lambda: list(workers_that_say_something()) == ["w0"], "one is left")
    within(LIMIT_S, lambda: workers_that_say_something()["w0"].body["workers_lost"] == 1, "its loss is said")
    w0.do(leave)
    os.rmdir(Path(tempfile.gettempdir(), "fanwise", "status"))
