"""Many members, one thread, virtual time: joins, departures, deaths and freezes in any order; all members agree.

When rank 0 ends, the group ends for all its members.
"""

import random
from collections.abc import Callable, Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_groups import PlayedGroup, check

from fanwise.rpc.membership.coordinator import Coordinator
from fanwise.rpc.membership.members import Departure, Member

RANKS = 5
LONG_S = 100.0

KINDS = ["start", "start", "start", "kill", "leave", "freeze", "wake", "wake", "wait", "short"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, RANKS - 1)), max_size=40)


def run(group: PlayedGroup, for_s: float) -> None:
    group.sim.run(until_s=group.sim.clock.now_s() + for_s)


def play(group: PlayedGroup, steps: list[tuple[str, int]]) -> None:
    for kind, rank in steps:
        if kind == "start":
            group.start(rank)
        elif kind in ("wait", "short"):
            run(group, 2.0 if kind == "wait" else 0.01 * (rank + 1))
        for worker in group.living(rank):
            if kind == "kill":
                worker.stop(killed=True)
            elif kind == "leave" and not worker.frozen:
                worker.leave()
            elif kind == "freeze":
                worker.freeze()
            elif kind == "wake" and worker.frozen:
                worker.wake()
    for worker in group.living():
        if worker.frozen:
            worker.wake()


def play_to_the_end(seed: int, steps: list[tuple[str, int]]) -> PlayedGroup:
    group = PlayedGroup(seed, None)
    play(group, steps)
    run(group, LONG_S)
    check(group)
    return group


def random_steps(seed: int, number: int = 60) -> list[tuple[str, int]]:
    chance = random.Random(seed)
    return [(chance.choice(KINDS), chance.randrange(RANKS)) for _ in range(number)]


@given(STEPS, st.integers(0, 2**20))
def test_all_members_of_a_dynamic_group_agree(steps: list[tuple[str, int]], seed: int) -> None:
    play_to_the_end(seed, steps)


def play_many(number: int) -> None:
    for seed in range(number):
        play_to_the_end(seed, random_steps(seed))


def _publish_no_departure(
    self: Coordinator, change: Member | Departure, to: set[int], waiting: Collection[int] = ()
) -> list[object]:
    return [] if isinstance(change, Departure) else _publish(self, change, to, waiting)  # type: ignore[return-value]


def _confirm_nothing(self: Coordinator, number: int) -> list[object]:
    return []


_publish = Coordinator._publish


@pytest.mark.parametrize(("name", "broken"), [("_publish", _publish_no_departure), ("_complete", _confirm_nothing)])
def test_the_simulation_finds_a_broken_rule(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., object]
) -> None:
    monkeypatch.setattr(Coordinator, name, broken)
    with pytest.raises((AssertionError, KeyError)):
        play_many(300)


@given(STEPS, st.integers(0, 2**20))
def test_all_members_of_a_static_group_agree_when_all_were_started_again(
    steps: list[tuple[str, int]], seed: int
) -> None:
    group = PlayedGroup(seed, RANKS)
    for rank in range(RANKS):
        group.start(rank)
    play(group, steps)
    for _ in range(3):  # workers that were leaving, or whose group ended, are gone by the second time
        run(group, LONG_S)
        for rank in range(RANKS):
            group.start(rank)
    run(group, LONG_S)
    check(group)
    assert len(group.living()) == RANKS


def arriving(seed: int, arrivals: list[float]) -> PlayedGroup:
    """Return a static group whose members begin their shutdown after these times."""
    group = PlayedGroup(seed, RANKS)
    for rank in range(RANKS):
        group.start(rank)
    run(group, 10.0)
    check(group)
    for rank, delay_s in enumerate(arrivals):
        worker = group.living(rank)[0]
        group.sim.after(delay_s, lambda worker=worker: worker.alive and worker.arrive())  # type: ignore[misc]
    return group


@given(
    st.lists(st.tuples(st.integers(1, RANKS - 1), st.floats(0.0, 0.5)), max_size=RANKS - 1),
    st.lists(st.floats(0.0, 0.5), min_size=RANKS, max_size=RANKS),
    st.integers(0, 2**20),
)
def test_the_shutdown_of_a_static_group_ends_when_members_die(
    deaths: list[tuple[int, float]], arrivals: list[float], seed: int
) -> None:
    group = arriving(seed, arrivals)
    for rank, delay_s in deaths:
        worker = group.living(rank)[0]
        group.sim.after(delay_s, lambda worker=worker: worker.stop(killed=True))  # type: ignore[misc]
    run(group, LONG_S)
    assert group.living() == []
    assert all(worker.has_finished or worker in group.killed for worker in group.workers.values())


@given(st.floats(0.0, 1.0), st.integers(0, 2**20))
def test_when_rank_0_dies_in_the_shutdown_the_others_finish_or_know_of_the_loss(delay_s: float, seed: int) -> None:
    group = arriving(seed, [0.1 * rank for rank in range(RANKS)])
    (rank_0,) = group.living(0)
    group.sim.after(delay_s, lambda: rank_0.stop(killed=True))
    run(group, LONG_S)
    assert group.living() == []
    for worker in group.workers.values():
        assert worker is rank_0 or worker.has_finished or worker.ended == "lost"
