"""The protocol of a run in several processes, played: real members and views, random order, kills, one seed."""

import pytest
from played_members import PlayedRun

from fanwise.parallel.comm.shm_team import MembershipChanged, SharedMemoryTeam
from fanwise.parallel.launch.membership import Membership, View

TRANSACTIONS = 8


def played(
    seed: int,
    member: type[SharedMemoryTeam] = SharedMemoryTeam,
    views: type[Membership] = Membership,
    versions: int = 2,
) -> PlayedRun:
    """A run that was played, all of whose processes saw the same."""
    run = PlayedRun(
        seed,
        members=2 + seed % 3,
        transactions=TRANSACTIONS,
        kills=seed % 5,
        calm=(0.3, 0.6, 0.9)[seed // 5 % 3],
        member=member,
        views=views,
        versions=versions,
    )
    run.play()
    for life in run.lives:
        assert life.done == list(range(len(life.done)))
    assert all(len(places) == 1 for places in run.places.values()), run.places
    reports = [number for number, kind in enumerate(run.kinds) if kind == "report"]
    assert run.reports == reports[: len(run.reports)]
    if run.result is not None:
        assert run.result == list(range(TRANSACTIONS))
        assert run.reports == reports
        assert set(run.places) == set(range(TRANSACTIONS))
    assert run.is_lost == (run.result is None)
    return run


@pytest.mark.parametrize("part", range(4))
def test_what_is_left_of_a_run_does_every_transaction_once(part: int) -> None:
    runs = [played(seed) for seed in range(20 * part, 20 * part + 20)]
    assert sum(run.killed for run in runs) > 10


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_ten_thousand_played_runs(part: int) -> None:
    for seed in range(500 * part, 500 * part + 500):
        played(seed)


class LooksTwice(SharedMemoryTeam):
    """Enters the view that is shown when it has read which one it is."""

    def _leave_view(self) -> None:
        was_known = self._next is not None
        super()._leave_view()
        if not was_known:
            self._next = (self._control.view, self._control.members)


class Hopeful(SharedMemoryTeam):
    """Takes for done what not all had come to."""

    def _wait_for(self, rank: int) -> bool:
        try:
            return super()._wait_for(rank)
        except MembershipChanged:
            return False


@pytest.mark.parametrize("broken", [LooksTwice, Hopeful])
def test_broken_members_are_caught(broken: type[SharedMemoryTeam]) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError, RuntimeError)):
        all(played(seed, member=broken) for seed in range(2000))


class Hasty(Membership):
    """Does not wait until all members have acknowledged that a view ends."""

    def lost(self, rank: int) -> View | None:
        view = super().lost(rank)
        self._acknowledged = set(self.living)
        return (self._decide_if_complete() if view else None) or view


def test_a_membership_that_does_not_wait_is_caught() -> None:
    with pytest.raises((AssertionError, KeyError, ValueError, RuntimeError)):
        all(played(seed, views=Hasty) for seed in range(2000))


def test_nodes_that_are_written_while_others_read_them_are_caught() -> None:
    with pytest.raises(AssertionError, match=r"transaction \d saw"):
        all(played(seed, versions=1) for seed in range(2000))
