"""Death, freezing, strangers and garbage among real workers: nobody hangs, nobody else is hurt, all learn why."""

import contextlib
import ctypes
import gc
import os
import random
import signal
import socket
import statistics
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from gates import Gate
from rpc_workers import LIMIT_S, Worker, Workers, all_do, leave, names, num_owned

import fanwise.rpc as rpc
from fanwise.base.errors import AuthenticationError, ClosedError, OwnerLostError, WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.link import Link
from fanwise.links.transports.unix import UnixListener, dial
from fanwise.rpc import agent as agents
from fanwise.rpc import autograd
from fanwise.testing import within

NOBODY = 65534  # a user id that is neither ours nor root's

# Any throughout: what users' functions take and return.

# -- what workers are told to do -----------------------------------------------------------------------------------


def pid() -> int:
    return os.getpid()


def call(to: str, function: Any, *args: object, timeout_s: float = 0) -> Any:
    return rpc.rpc_sync(to, function, args, timeout=timeout_s)


def mark_and_hang(mark: Path) -> None:
    mark.touch()
    threading.Event().wait()


@rpc.functions.async_execution
def mark_and_promise(mark: Path) -> "torch.futures.Future[Any]":
    mark.touch()
    KEPT.append(promise := torch.futures.Future())  # type: ignore[var-annotated]
    return promise


KEPT: list[Any] = []


def call_by_future(to: str, function: Any, *args: object) -> Any:
    return rpc.rpc_async(to, function, args, timeout=0).wait()


def value_by_reference(to: str, function: Any, *args: object) -> Any:
    return rpc.remote(to, function, args, timeout=0).to_here(timeout=0)


def hang_here(mark: Path) -> None:
    """With nothing of rpc."""
    mark_and_hang(mark)


def keep_remote(to: str) -> None:
    KEPT.append(rpc.remote(to, torch.ones, (3,)))
    KEPT[-1].to_here()


def kept_value() -> Any:
    return KEPT[-1].to_here()


def hold_the_interpreter(milliseconds: int) -> str:
    """No thread of this process runs meanwhile."""
    ctypes.PyDLL(None).poll(None, 0, milliseconds)
    return "done"


def refusals() -> Counter[str]:
    listeners = [thing for thing in gc.get_objects() if type(thing) is UnixListener]
    return sum((Counter[str](listener.refused) for listener in listeners), Counter[str]())


def sees(worker: Worker, *others: str) -> None:
    within(LIMIT_S, lambda: worker.do(names) == list(others), f"{worker.name} sees {others}")


def who_answers(to: str) -> int:
    """The process that answers a call; 0: none does."""
    try:
        return call(to, pid)  # type: ignore[no-any-return]
    except RuntimeError:
        return 0


def reaches(one: Worker, other: Worker) -> None:
    """The others learn of a new incarnation a moment later."""
    within(LIMIT_S, lambda: one.do(who_answers, other.name) == other.pid, f"{one.name} reaches {other.name}")


def is_marked(mark: Path) -> None:
    within(LIMIT_S, mark.exists, "the function has begun")


# -- death ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [call, call_by_future, value_by_reference])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_call_without_time_out_ends_when_its_callee_is_killed(
    real_workers: Workers, tmp_path: Path, way: Any, victim: int
) -> None:
    three = real_workers.group(3)
    caller = three[(victim + 1) % 3].begin(way, f"w{victim}", mark_and_hang, tmp_path / "mark")
    is_marked(tmp_path / "mark")
    three[victim].kill()
    with pytest.raises(WorkerLostError, match=f"w{victim}") as caught:
        caller.result()
    assert isinstance(caught.value, RuntimeError)


def test_a_call_of_an_async_function_ends_when_its_callee_is_killed(real_workers: Workers, tmp_path: Path) -> None:
    three = real_workers.group(3)
    three[0].begin(call, "w1", mark_and_promise, tmp_path / "mark")
    is_marked(tmp_path / "mark")
    three[1].kill()
    with pytest.raises(WorkerLostError, match="w1"):
        three[0].result()


def test_a_nested_call_that_loses_its_callee_names_that_one(real_workers: Workers, tmp_path: Path) -> None:
    three = real_workers.group(3)
    three[0].begin(call, "w1", call, "w2", mark_and_hang, tmp_path / "mark")
    is_marked(tmp_path / "mark")
    three[2].kill()
    with pytest.raises(WorkerLostError, match="worker w2") as caught:
        three[0].result()
    assert "w1" not in str(caught.value)
    all_do(three[:2], leave)


def test_the_middle_of_a_nested_call_may_die(real_workers: Workers, tmp_path: Path) -> None:
    three = real_workers.group(3)
    three[0].begin(call, "w1", call, "w2", mark_and_wait, tmp_path / "mark", tmp_path / "go")
    is_marked(tmp_path / "mark")
    three[1].kill()
    with pytest.raises(WorkerLostError, match="worker w1"):
        three[0].result()
    (tmp_path / "go").touch()
    all_do([three[0], three[2]], leave)


def mark_and_wait(mark: Path, go: Path) -> None:
    mark.touch()
    within(LIMIT_S, go.exists, "the test goes on")


def fork_and_hang(gate: Gate, mark: Path) -> None:
    if os.fork() == 0:
        mark.touch()
        gate.wait()
        os._exit(0)
    threading.Event().wait()


def test_a_death_is_noticed_while_a_fork_of_the_dead_lives_on(real_workers: Workers, tmp_path: Path) -> None:
    with Gate(tmp_path / "gate") as gate:
        three = real_workers.group(3)
        three[0].begin(call, "w1", fork_and_hang, gate, tmp_path / "mark")
        is_marked(tmp_path / "mark")
        three[1].kill()
        with pytest.raises(WorkerLostError, match="w1"):
            three[0].result()
        all_do([three[0], three[2]], leave)


def test_calls_to_a_killed_worker_fail_and_survivors_still_talk_and_leave(real_workers: Workers) -> None:
    three = real_workers.group(3)
    assert three[0].do(call, "w1", pid) == three[1].pid
    three[1].kill()
    for survivor in (three[0], three[2]):
        for to in ("w1", 1):
            with pytest.raises(WorkerLostError, match="w1"):
                survivor.do(call, to, pid)
    assert three[0].do(call, "w2", pid) == three[2].pid
    assert three[2].do(call, "w0", pid) == three[0].pid
    all_do([three[0], three[2]], leave)


def test_a_worker_that_dies_while_others_wait_in_shutdown_is_not_waited_for(real_workers: Workers) -> None:
    three = real_workers.group(3)
    for worker in three[:2]:
        worker.begin(leave)
    three[2].kill()
    for worker in three[:2]:
        worker.result()


def test_a_call_in_flight_to_the_dead_does_not_hold_up_shutdown(real_workers: Workers, tmp_path: Path) -> None:
    three = real_workers.group(3)
    three[0].do(begin_call, "w1", mark_and_hang, tmp_path / "mark")
    is_marked(tmp_path / "mark")
    three[1].kill()
    all_do([three[0], three[2]], leave)


def begin_call(to: str, function: Any, *args: object) -> None:
    KEPT.append(rpc.rpc_async(to, function, args, timeout=0))


@pytest.mark.parametrize("dynamic", [False, True])
def test_when_rank_0_dies_calls_and_shutdowns_of_the_others_end_and_name_it(
    real_workers: Workers, tmp_path: Path, dynamic: bool
) -> None:
    three = real_workers.group(3, dynamic=dynamic)
    three[1].do(keep_remote, "w2")
    three[2].begin(call, "w1", mark_and_hang, tmp_path / "mark")
    is_marked(tmp_path / "mark")
    three[0].kill()
    ended = r"the group has ended, because worker 'w0' \(rank 0, .*\), which coordinates it, was lost: "
    with pytest.raises(WorkerLostError, match=ended):
        three[2].result()
    for worker in three[1:]:
        sees(worker, worker.name)
        for to in ("w0", 0, "w1", "w2"):
            if to != worker.name:
                with pytest.raises(WorkerLostError, match=ended):
                    worker.do(call, to, pid)
        assert worker.do(call, worker.name, pid) == worker.pid
    with pytest.raises(OwnerLostError, match="w2"):
        three[1].do(kept_value)
    with pytest.raises(WorkerLostError, match=ended):
        three[1].do(leave)
    three[2].do(leave_at_once)


def leave_at_once() -> None:
    rpc.shutdown(graceful=False)


def test_shutdown_raises_when_rank_0_dies_while_it_waits(real_workers: Workers) -> None:
    three = real_workers.group(3)
    for worker in three[1:]:
        worker.begin(leave)
    three[0].kill()
    for worker in three[1:]:
        with pytest.raises(WorkerLostError, match="because worker 'w0'"):
            worker.result()


def test_when_rank_0_leaves_a_dynamic_group_it_ends_without_an_error(real_workers: Workers) -> None:
    three = real_workers.group(3, dynamic=True)
    three[0].do(leave)
    for worker in three[1:]:
        sees(worker, worker.name)
        with pytest.raises(WorkerLostError, match=r"because worker 'w0' .* has left"):
            worker.do(call, "w0", pid)
    all_do(three[1:], leave)


def test_all_but_rank_0_may_die_at_once(real_workers: Workers) -> None:
    four = real_workers.group(4)
    for worker in four[1:]:
        worker.send(signal.SIGKILL)
    sees(four[0], "w0")
    assert four[0].do(call, "w0", pid) == four[0].pid
    four[0].do(leave)


def test_a_worker_killed_while_the_group_gathers_is_told_of_and_may_be_replaced(real_workers: Workers) -> None:
    first, second = real_workers.begin(0, 3), real_workers.begin(1, 3)
    within(LIMIT_S, lambda: listening_sockets(second.pid), "it is about to join")
    assert not first.has_answered
    second.kill()
    others = [real_workers.begin(1, 3), real_workers.begin(2, 3)]
    for worker in (first, *others):
        worker.result()
    assert first.do(call, "w1", pid) == others[0].pid
    all_do([first, *others], leave)


def test_rank_0_killed_while_the_group_gathers_may_be_replaced(real_workers: Workers) -> None:
    first = real_workers.begin(0, 2)
    within(LIMIT_S, lambda: len(listening_sockets(first.pid)) == 2, "it has opened the entrance")
    second = real_workers.begin(1, 2)
    first.kill()
    again = real_workers.join(0, 2)
    second.result()
    assert second.do(call, "w0", pid) == again.pid


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_who_is_killed_somewhere_in_init_may_be_replaced(real_workers: Workers, seed: int) -> None:
    chance = random.Random(seed)
    victim, looked_at, num_sockets = chance.randrange(4), chance.randrange(4), chance.randrange(3)
    four = [real_workers.begin(rank, 4) for rank in range(4)]
    wanted = min(num_sockets, 2 if looked_at == 0 else 1)
    within(LIMIT_S, lambda: len(listening_sockets(four[looked_at].pid)) >= wanted, "it has come so far")
    four[victim].kill()
    four[victim] = real_workers.begin(victim, 4)
    for worker in four:
        worker.result()
    for worker in four:
        within(LIMIT_S, lambda: worker.do(names) == ["w0", "w1", "w2", "w3"], "all are there")  # noqa: B023
        assert worker.do(call, f"w{victim}", pid) == four[victim].pid
    all_do(four, leave)


# -- references ----------------------------------------------------------------------------------------------------


def test_what_a_killed_user_held_is_freed_by_the_owner(real_workers: Workers) -> None:
    three = real_workers.group(3)
    three[1].do(keep_remote, "w0")
    assert three[0].do(num_owned) == 1
    three[1].kill()
    within(LIMIT_S, lambda: three[0].do(num_owned) == 0, "the value was freed")


def test_the_value_of_a_dead_owner_is_lost_and_its_name_is_told(real_workers: Workers) -> None:
    three = real_workers.group(3)
    three[0].do(keep_remote, "w1")
    three[1].kill()
    with pytest.raises(OwnerLostError, match="w1"):
        three[0].do(kept_value)
    all_do([three[0], three[2]], leave)


# -- freezing ------------------------------------------------------------------------------------------------------


def test_a_frozen_callee_is_lost_the_others_continue_and_it_learns_its_fate(
    real_workers: Workers, tmp_path: Path
) -> None:
    caller, frozen, third = real_workers.group(3)
    assert frozen.do(call, "w2", pid) == third.pid
    frozen.do(dial_again, "w2")
    caller.begin(call, "w1", mark_and_hang, tmp_path / "mark")
    is_marked(tmp_path / "mark")
    frozen.send(signal.SIGSTOP)
    assert third.do(call, "w0", pid) == caller.pid
    with pytest.raises(WorkerLostError, match="w1"):
        caller.result()
    sees(third, "w0", "w2")
    # The view changes a moment before the links of the lost member are closed.
    within(LIMIT_S, lambda: third.do(num_links_with, frozen.pid) == 0, "no link to it is left")
    frozen.send(signal.SIGCONT)
    for to in ("w2", "w0"):
        within(LIMIT_S, lambda to=to: "declared lost" in frozen.do(how_it_fails, to), "its calls say why")  # type: ignore[misc]
    with pytest.raises(WorkerLostError, match="declared lost"):
        frozen.do(leave)
    sees(third, "w0", "w2")
    assert third.do(call, "w0", pid) == caller.pid
    all_do([caller, third], leave)


def test_when_rank_0_is_frozen_the_group_ends_and_rank_0_has_lost_the_others(
    real_workers: Workers, tmp_path: Path
) -> None:
    frozen, caller, third = real_workers.group(3)
    caller.begin(call, "w0", mark_and_hang, tmp_path / "mark")
    is_marked(tmp_path / "mark")
    frozen.send(signal.SIGSTOP)
    assert third.do(call, "w1", pid) == caller.pid
    with pytest.raises(WorkerLostError, match=r"because worker 'w0' .* was lost: it was stopped"):
        caller.result()
    sees(third, "w2")
    frozen.send(signal.SIGCONT)
    sees(frozen, "w0")
    for to in ("w1", "w2"):
        with pytest.raises(WorkerLostError, match=to):
            frozen.do(call, to, pid)
    frozen.do(leave_at_once)
    for worker in (caller, third):
        with pytest.raises(WorkerLostError, match="because worker 'w0'"):
            worker.do(leave)


def dial_again(to: str) -> None:
    """One more link, as when two dial each other at the same time."""
    agent = agents.current()
    agent.connections.dial(agent.group.find(to), LIMIT_S)


def num_links_with(process: int) -> int:
    links = [thing for thing in gc.get_objects() if type(thing) is Link]
    return sum(link.peer.pid == process and link.ending is None for link in links)


def how_it_fails(to: str) -> str:
    """The error of a call. Until the loss is known, one may be answered, or end with the other side's link."""
    try:
        return str(rpc.rpc_sync(to, pid, timeout=0))
    except (WorkerLostError, ClosedError) as error:
        return str(error)


def test_a_worker_whose_interpreter_is_held_for_long_loses_nothing(real_workers: Workers) -> None:
    hold_and_be_called(real_workers, 3000)


@pytest.mark.soak
def test_a_worker_whose_interpreter_is_held_for_20_seconds_loses_nothing(real_workers: Workers) -> None:
    hold_and_be_called(real_workers, 20000)


def hold_and_be_called(real_workers: Workers, milliseconds: int) -> None:
    three = real_workers.group(3)
    three[0].do(keep_remote, "w1")
    three[1].do(keep_remote, "w0")
    three[0].begin(call, "w1", hold_the_interpreter, milliseconds)
    three[2].begin(call, "w1", pid)
    assert three[0].result() == "done"
    assert three[2].result() == three[1].pid
    assert three[0].do(kept_value).sum() == 3 and three[1].do(kept_value).sum() == 3
    assert three[2].do(names) == ["w0", "w1", "w2"]
    all_do(three, leave)


# -- coming back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, None])
def test_a_killed_worker_comes_back_under_its_name(real_workers: Workers, size: int | None) -> None:
    three = real_workers.group(3, dynamic=size is None)
    assert three[2].do(call, "w1", pid) == three[1].pid
    three[1].kill()
    three[1] = again = real_workers.join(1, size)
    reaches(three[2], again)
    reaches(again, three[2])
    all_do(three, leave)


def test_a_dynamic_group_takes_in_newcomers_also_after_a_death(real_workers: Workers) -> None:
    one, two = real_workers.group(2, dynamic=True)
    third = real_workers.join(2)
    assert one.do(call, "w2", pid) == third.pid and third.do(call, "w1", pid) == two.pid
    two.kill()
    fourth = real_workers.join(3)
    assert one.do(call, "w3", pid) == fourth.pid and fourth.do(call, "w2", pid) == third.pid
    sees(fourth, "w0", "w2", "w3")
    all_do([one, third, fourth], leave)


# -- autograd ------------------------------------------------------------------------------------------------------


class HangingBackward(torch.autograd.Function):
    """The identity, whose backward pass never ends."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mark: str) -> torch.Tensor:
        ctx.mark = Path(mark)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        mark_and_hang(ctx.mark)


def hang_backward(x: torch.Tensor, mark: str) -> torch.Tensor:
    return HangingBackward.apply(x, mark)  # type: ignore[no-any-return, no-untyped-call]


def run_backward(to: str, mark: Path) -> None:
    with autograd.context() as context_id:
        x = torch.ones(3, requires_grad=True)
        loss = rpc.rpc_sync(to, hang_backward, (x, str(mark)), timeout=0).sum()
        autograd.backward(context_id, [loss])


def test_a_backward_pass_ends_when_a_worker_of_it_is_killed(real_workers: Workers, tmp_path: Path) -> None:
    three = real_workers.group(3)
    three[0].begin(run_backward, "w1", tmp_path / "mark")
    is_marked(tmp_path / "mark")
    three[1].kill()
    with pytest.raises(WorkerLostError, match="worker w1 was lost"):
        three[0].result()
    all_do([three[0], three[2]], leave)


# -- strangers and garbage -----------------------------------------------------------------------------------------


def listening_sockets(pid: int) -> list[str]:
    """The paths of the Unix sockets on which a process listens. It must not listen on any other socket."""
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        rows = [line.split() for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
        assert not [row for row in rows if row[9] in inodes], f"process {pid} has an open port of {table}"
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    accepts = "00010000"
    return [row[7] for row in rows if row[6] in inodes and row[3] == accepts]


def count(worker: Worker, refused: int) -> Counter[str] | None:
    """What it has refused, when that is so much."""
    seen: Counter[str] = worker.do(refusals)
    return seen if seen.total() == refused else None


def connected(path: str) -> socket.socket:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.settimeout(LIMIT_S)
    stranger.connect(path)
    return stranger


def test_random_bytes_at_every_socket_are_refused_and_counted_and_hurt_nobody(real_workers: Workers) -> None:
    three = real_workers.group(3)
    for worker in three:
        paths = listening_sockets(worker.pid)
        assert len(paths) == (2 if worker is three[0] else 1)
        for path in paths:
            with connected(path) as stranger:
                garbage = os.urandom(4096)
                try:
                    stranger.sendall(garbage)
                    while stranger.recv(4096):
                        pass
                except (BrokenPipeError, ConnectionResetError):
                    pass  # closed before all was read
        seen = within(LIMIT_S, lambda: count(worker, len(paths)), f"{worker.name} has counted it")  # noqa: B023
        assert set(seen) <= {"not-authentic", "malformed"}
    for worker in three:
        assert worker.do(call, "w0", pid) == three[0].pid and worker.do(call, "w2", pid) == three[2].pid
    all_do(three, leave)


def test_who_does_not_have_the_key_can_neither_join_nor_call(real_workers: Workers) -> None:
    two = real_workers.group(2)
    for worker in two:
        for path in listening_sockets(worker.pid):
            hub = Hub(name="stranger")
            hub.start()
            try:
                with pytest.raises((AuthenticationError, WorkerLostError)):  # told so, or just closed
                    dial(hub, Path(path), b"?" * 32, within_s=LIMIT_S)
            finally:
                hub.close()
        within(LIMIT_S, lambda: worker.do(refusals)["not-authentic"], f"{worker.name} has counted it")  # noqa: B023
    assert two[0].do(names) == ["w0", "w1"]


def become(user: int) -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def what_connecting_gives(path: str) -> str:
    """The error; or nothing, when it was closed without a word."""
    try:
        with connected(path) as stranger:
            return stranger.recv(4096).decode(errors="replace")
    except OSError as error:
        return type(error).__name__


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_not_even_heard(real_workers: Workers, tmp_path: Path) -> None:
    two = real_workers.group(2)
    other = real_workers.start("other")
    other.do(become, NOBODY)
    for worker in two:
        for path in listening_sockets(worker.pid):
            assert other.do(what_connecting_gives, path) == "PermissionError"
            os.chmod(path, 0o777)
            folders = [folder for folder in Path(path).parents if folder.stat().st_mode & 0o077 == 0]
            try:
                for folder in folders:
                    folder.chmod(0o711)
                assert other.do(what_connecting_gives, path) == ""  # the kernel says who it is
            finally:
                for folder in folders:
                    folder.chmod(0o700)
        within(LIMIT_S, lambda: worker.do(refusals)["other-user"], f"{worker.name} has counted it")  # noqa: B023
    assert two[0].do(call, "w1", pid) == two[1].pid


# -- how quick it is (measured, not judged) ------------------------------------------------------------------------


@pytest.mark.soak
def test_how_soon_a_death_is_noticed(real_workers: Workers, tmp_path: Path) -> None:
    took_ms = []
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        real_workers.url = f"file://{folder}/meet"
        three = real_workers.group(3)
        three[0].begin(time_of_loss, "w1", folder / "mark")
        is_marked(folder / "mark")
        before_s = time.monotonic()
        three[1].send(signal.SIGKILL)
        took_ms.append((three[0].result() - before_s) * 1000)
        three[1].ended()
        all_do([three[0], three[2]], leave)
    print(f"killed on the same host: noticed after {statistics.median(took_ms):.1f} ms, at most {max(took_ms):.1f} ms")


def time_of_loss(to: str, mark: Path) -> float:
    """On the clock that all processes of a host share."""
    try:
        call(to, mark_and_hang, mark)
    except WorkerLostError:
        return time.monotonic()
    raise AssertionError("the call has returned")


@pytest.mark.soak
def test_how_soon_a_frozen_worker_is_noticed(real_workers: Workers, tmp_path: Path) -> None:
    three = real_workers.group(3)
    three[0].begin(time_of_loss, "w1", tmp_path / "mark")
    is_marked(tmp_path / "mark")
    before_s = time.monotonic()
    three[1].send(signal.SIGSTOP)
    print(f"frozen: noticed after {three[0].result() - before_s:.2f} s")
