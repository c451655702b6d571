"""Who opens a group after the death of its coordinator: those who are left, before anybody who comes."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lock_holders import die_holding

from fanwise.base.errors import DeadlineExceeded
from fanwise.links.hub import Hub
from fanwise.links.process_state import look_at
from fanwise.rpc.membership import seeking
from fanwise.rpc.membership.group import Group
from fanwise.rpc.rendezvous.addresses import Rendezvous
from fanwise.rpc.rendezvous.entrance import LocalMeeting
from fanwise.rpc.rendezvous.lock_files import lock_path

WHERE = Rendezvous("tcp://127.0.0.1:1", "port:1", "127.0.0.1", 1)
LIMIT_S = 20.0
SHORT_S = 0.2


@pytest.fixture
def meeting() -> Iterator[LocalMeeting]:
    with tempfile.TemporaryDirectory() as folder:
        yield LocalMeeting(WHERE, folder=Path(folder))


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(name="newcomer")
    hub.start()
    yield hub
    hub.close()


def coordinator_dies(meeting: LocalMeeting, *members: tuple[int, int]) -> None:
    """It had these members besides itself."""
    die_holding(lock_path(meeting._folder, WHERE.name), *members)


def join(hub: Hub, meeting: LocalMeeting, rank: int, within_s: float, world_size: int | None = None) -> Group:
    address = meeting.listen(hub, lambda link: None)
    return Group.join(
        hub, meeting, name=f"w{rank}", rank=rank, world_size=world_size, address=address, within_s=within_s
    )


@pytest.mark.parametrize(("rank", "world_size"), [(0, None), (1, None), (0, 1)])
def test_a_newcomer_leaves_the_group_to_those_whose_coordinator_died(
    hub: Hub, meeting: LocalMeeting, monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int | None
) -> None:
    monkeypatch.setattr(seeking, "_ALONE_S", 0.0)
    monkeypatch.setattr(seeking, "_SURVIVORS_S", float("inf"))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as survivor:
        coordinator_dies(meeting, (survivor.pid, look_at(survivor.pid).started_ticks))
        with pytest.raises(DeadlineExceeded):
            join(hub, meeting, rank, SHORT_S, world_size)
        survivor.communicate()
    join(hub, meeting, rank, LIMIT_S, world_size).close()


def test_survivors_that_do_not_come_are_waited_for_a_while_only(
    hub: Hub, meeting: LocalMeeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeking, "_SURVIVORS_S", SHORT_S)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as survivor:
        coordinator_dies(meeting, (survivor.pid, look_at(survivor.pid).started_ticks))
        join(hub, meeting, 0, LIMIT_S).close()
        survivor.communicate()


def test_after_a_group_that_died_as_a_whole_rank_0_waits_for_nobody(
    hub: Hub, meeting: LocalMeeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeking, "_SURVIVORS_S", float("inf"))
    dead = subprocess.Popen(["true"])
    started_ticks = look_at(dead.pid).started_ticks
    dead.wait()
    coordinator_dies(meeting, (dead.pid, started_ticks))
    join(hub, meeting, 0, LIMIT_S).close()
