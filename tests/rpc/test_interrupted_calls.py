"""An interrupt, a limit or a failed send in the middle of a call leaves no lock, flag or reference behind."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fake_agents import FakeAgent, fake_workers, make, remote, wait_until_empty
from rpc_workers import LIMIT_S, Workers, all_do, leave, mark_and_wait, num_owned

import fanwise.rpc as rpc
from fanwise.base.errors import CancelledError, DeadlineExceeded, NotSendableError
from fanwise.rpc import agent as agents
from fanwise.rpc.calling.call import ChainedCall
from fanwise.rpc.calling.call_future import CallFuture
from fanwise.testing import within

# Any throughout: what users' functions take and return.


@pytest.fixture
def two() -> Iterator[list[FakeAgent]]:
    with fake_workers(2) as workers:
        yield workers


class FakeReply:
    """A reply that arrives when `arrive` is called."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self.is_done = False

    def add_done_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def arrive(self) -> None:
        self.is_done = True
        for callback in self.callbacks:
            callback(self)

    def done(self) -> bool:
        return self.is_done

    def cancel(self) -> bool:
        raise KeyboardInterrupt

    def result(self) -> Any:
        raise DeadlineExceeded("no answer")


class InterruptedAgent:
    """Its waits are interrupted when they begin."""

    is_closed = False

    def waiting(self) -> Any:
        raise KeyboardInterrupt

    def answer(self, job: Any) -> None:
        job()


@pytest.mark.parametrize("use", ["wait", "cancel"])
def test_a_reply_after_an_interrupted_wait_or_cancel_is_read(use: str) -> None:
    reply = FakeReply()
    call = CallFuture(cast(Any, InterruptedAgent()), cast(Any, reply), rpc.WorkerInfo("w1", 1), None)
    with pytest.raises(KeyboardInterrupt):
        getattr(call, use)()
    assert not call.done()
    reply.arrive()
    assert call.done()


class SlowChainedCall(ChainedCall):
    """Sent by another thread after `cancel` has found it unsent."""

    sent: ChainedCall

    def fail(self, error: Exception) -> bool:
        self.follow(self.sent)
        return super().fail(error)


def test_a_call_that_is_sent_while_it_is_canceled_is_canceled_too() -> None:
    call, sent = SlowChainedCall(), ChainedCall()
    call.sent = sent
    assert call.cancel()
    with pytest.raises(CancelledError):
        sent.value()


@pytest.mark.parametrize("to", [0, 1])
def test_an_interrupt_after_the_creating_call_was_sent_frees_the_value(
    two: list[FakeAgent], monkeypatch: pytest.MonkeyPatch, to: int
) -> None:
    call = two[0].call

    def call_and_interrupt(*args: Any, **kwargs: Any) -> Any:
        call(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(two[0], "call", call_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        remote(to, make, 40)
    gc.collect()
    wait_until_empty(two)


def limit_replies(num_bytes: int) -> None:
    for links in agents.current().connections._links.values():
        for link in links:
            link.peer_takes(num_bytes)


def reply_with_a_reference(num_bytes: int) -> Any:
    limit_replies(1000)
    return rpc.RRef(1), bytes(num_bytes)


def ask_for_too_much() -> str:
    try:
        rpc.rpc_sync("w1", reply_with_a_reference, (10_000,))
    except NotSendableError as error:
        return str(error)
    return ""


def test_a_reply_that_is_too_large_releases_its_references(real_workers: Workers) -> None:
    workers = real_workers.group(2)
    assert "10" in workers[0].do(ask_for_too_much)
    within(LIMIT_S, lambda: workers[1].do(num_owned) == 0, "the value is freed")
    workers[1].do(limit_replies, 1 << 30)
    all_do(workers, leave)


def give_a_reference(mark: Path, resume: Path) -> "rpc.RRef[int]":
    mark_and_wait(mark, resume)
    return rpc.RRef(3)


def ask_until_interrupted(mark: Path, resume: Path) -> str:
    try:
        rpc.rpc_sync("w1", give_a_reference, (mark, resume), timeout=0)
    except KeyboardInterrupt:
        return "interrupted"
    return "answered"


def test_references_in_a_reply_to_an_interrupted_call_are_released(real_workers: Workers, tmp_path: Path) -> None:
    workers = real_workers.group(2)
    mark, resume = tmp_path / "mark", tmp_path / "resume"
    workers[0].begin(ask_until_interrupted, mark, resume)
    within(LIMIT_S, mark.exists, "the function runs")
    workers[0].send(signal.SIGINT)
    assert workers[0].result() == "interrupted"
    resume.touch()
    within(LIMIT_S, lambda: workers[1].do(num_owned) == 0, "the value is freed")
    all_do(workers, leave)
