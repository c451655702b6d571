"""Processes that join a group: refusals, and cleanup of their sockets."""

import contextlib
import gc
import os
import random
import socket
from collections import Counter
from pathlib import Path

import pytest
from rpc_workers import LIMIT_S, Worker, Workers, all_do, call, join, leave, names, pid

import fanwise.rpc as rpc
from fanwise.base.errors import AuthenticationError, DeadlineExceeded, JoinError, WorkerLostError
from fanwise.links.hub import Hub
from fanwise.links.transports.unix import UnixListener, dial
from fanwise.testing import within

NOBODY = 65534  # a user id that is neither ours nor root's


def listening_sockets(pid: int) -> list[str]:
    """Return the paths of the Unix sockets on which a process listens. It must not listen on any other socket."""
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        rows = [line.split() for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
        assert not [row for row in rows if row[9] in inodes], f"process {pid} has an open port of {table}"
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    accepts = "00010000"
    return [row[7] for row in rows if row[6] in inodes and row[3] == accepts]


# -- joining -------------------------------------------------------------------------------------------------------


def test_group_leaves_no_socket_and_may_meet_again_at_once(real_workers: Workers) -> None:
    three = real_workers.group(3)
    paths = [path for worker in three for path in listening_sockets(worker.pid)]
    assert len(paths) == 4, "rank 0 has two"
    for _ in range(3):
        all_do(three, leave)
        assert not any(Path(path).exists() for path in paths)
        for rank, worker in enumerate(three):
            worker.begin(join, worker.name, rank, 3, real_workers.url)
        for worker in three:
            worker.result()
    assert three[2].do(names) == ["w0", "w1", "w2"]
    all_do(three, leave)


def test_join_without_rank_0_names_the_address(real_workers: Workers) -> None:
    with pytest.raises(DeadlineExceeded, match=r"nobody opened the group at file:.* within 0\.5 s"):
        real_workers.join(1, 2, rpc_timeout=0.5)


@pytest.mark.parametrize("rank", [0, 2])
def test_join_that_times_out_names_the_missing_ranks(real_workers: Workers, rank: int) -> None:
    real_workers.begin(2 - rank, 4)
    with pytest.raises(DeadlineExceeded, match="2 of 4 workers are there; missing: rank 1, 3"):
        real_workers.join(rank, 4, rpc_timeout=1.5)


def test_refused_worker_learns_the_reason_and_the_group_continues(real_workers: Workers) -> None:
    first = real_workers.join(0)
    with pytest.raises(JoinError, match="'w0' is not unique"):
        real_workers.join(1, None, "w0")
    with pytest.raises(JoinError, match=r"rank 0, which 'other' .* is taken by 'w0'"):
        real_workers.join(0, None, "other")
    second = real_workers.join(1)
    assert second.do(call, "w0", pid) == first.pid


def test_worker_killed_while_the_group_gathers_may_be_replaced(real_workers: Workers) -> None:
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
    within(LIMIT_S, lambda: len(listening_sockets(first.pid)) == 2, "it has opened the group")
    second = real_workers.begin(1, 2)
    first.kill()
    again = real_workers.join(0, 2)
    second.result()
    assert second.do(call, "w0", pid) == again.pid


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_worker_killed_at_any_time_of_init_may_be_replaced(real_workers: Workers, seed: int) -> None:
    chance = random.Random(seed)
    victim, observed, num_sockets = chance.randrange(4), chance.randrange(4), chance.randrange(3)
    four = [real_workers.begin(rank, 4) for rank in range(4)]
    wanted = min(num_sockets, 2 if observed == 0 else 1)
    within(LIMIT_S, lambda: len(listening_sockets(four[observed].pid)) >= wanted, "it has reached this step")
    four[victim].kill()
    four[victim] = real_workers.begin(victim, 4)
    for worker in four:
        worker.result()
    for worker in four:
        within(LIMIT_S, lambda: worker.do(names) == ["w0", "w1", "w2", "w3"], "all have joined")  # noqa: B023
        assert worker.do(call, f"w{victim}", pid) == four[victim].pid
    all_do(four, leave)


def error_of_shutdown() -> str:
    with pytest.raises(DeadlineExceeded) as raised:
        rpc.shutdown(timeout=0.2)
    return str(raised.value)


def test_shutdown_that_times_out_names_workers_that_have_not_called_it(real_workers: Workers) -> None:
    two = real_workers.group(2)
    assert "these have not called shutdown: 'w0' (rank 0" in two[1].do(error_of_shutdown)
    two[0].do(leave)


# -- strangers -----------------------------------------------------------------------------------------------------


def refusals() -> Counter[str]:
    listeners = [thing for thing in gc.get_objects() if type(thing) is UnixListener]
    return sum((Counter[str](listener.refused) for listener in listeners), Counter[str]())


def wait_for_refusal(worker: Worker, kind: str) -> None:
    within(LIMIT_S, lambda: worker.do(refusals)[kind], f"{worker.name} has counted the refusal")


def test_process_without_the_key_is_refused(real_workers: Workers) -> None:
    two = real_workers.group(2)
    for worker in two:
        for path in listening_sockets(worker.pid):
            hub = Hub(name="stranger")
            hub.start()
            try:
                with pytest.raises((AuthenticationError, WorkerLostError)):  # with or without a reply
                    dial(hub, Path(path), b"?" * 32, within_s=LIMIT_S)
            finally:
                hub.close()
        wait_for_refusal(worker, "not-authentic")
    assert two[0].do(names) == ["w0", "w1"]


def become(user: int) -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def result_of_connecting(path: str) -> str:
    """Return the name of the error, or the bytes received until the connection was closed."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.settimeout(LIMIT_S)
            stranger.connect(path)
            return stranger.recv(4096).decode(errors="replace")
    except OSError as error:
        return type(error).__name__


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_user_is_refused_by_permissions_and_by_the_user_id_from_the_kernel(real_workers: Workers) -> None:
    two = real_workers.group(2)
    other = real_workers.start("other")
    other.do(become, NOBODY)
    for worker in two:
        for path in listening_sockets(worker.pid):
            assert other.do(result_of_connecting, path) == "PermissionError"
            os.chmod(path, 0o777)
            folders = [folder for folder in Path(path).parents if folder.stat().st_mode & 0o077 == 0]
            try:
                for folder in folders:
                    folder.chmod(0o711)
                assert other.do(result_of_connecting, path) == ""
            finally:
                for folder in folders:
                    folder.chmod(0o700)
        wait_for_refusal(worker, "other-user")
    assert two[0].do(call, "w1", pid) == two[1].pid
