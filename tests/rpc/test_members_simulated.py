"""Many members, one thread, virtual time: joins, leaves, deaths, resets, freezes, successions in any order; all agree.

The links here are like real ones: in order, each with its own delays, and with an end that comes after all that was
sent; a reset loses that. The entrance is held by one at a time, falls free with its holder, and is left to the group
as long as some of it live. Who is frozen for long
is declared lost, and wakes at any later time: with all that was sent to it still to be read, or with a dead link only.
No reason is remembered for longer than the protocol needs.
"""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_groups import PlayedGroup, agree

from fanwise.rpc.membership.coordinator import (
    Coordinator,
)

RANKS = 5
LONG_S = 100.0

KINDS = ["start", "start", "kill", "leave", "reset", "reset", "freeze", "wake", "wake", "wait", "short"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, RANKS - 1)), max_size=40)


@given(STEPS, st.integers(0, 2**20))
def test_a_dynamic_group_agrees_in_the_end_whatever_happened(steps: list[tuple[str, int]], seed: int) -> None:
    end_well(seed, steps)


def end_well(seed: int, steps: list[tuple[str, int]]) -> PlayedGroup:
    group = PlayedGroup(seed, None)
    play(group, steps)
    group.sim.run(until_s=group.sim.clock.now_s() + LONG_S)
    agree(group)
    return group


def drawn(seed: int, number: int = 60) -> list[tuple[str, int]]:
    chance = random.Random(seed)
    return [(chance.choice(KINDS), chance.randrange(RANKS)) for _ in range(number)]


def test_what_is_remembered_of_the_lost_does_not_grow() -> None:
    groups = [end_well(seed, drawn(seed, 300)) for seed in range(10)]
    assert min(len(group.killed) + len(group.lost_frozen) for group in groups) > 10
    for group in groups:
        for worker in group.living():
            assert worker.state.view is not None and len(worker.state.view.lost) <= 2 * RANKS


def all_end_well(number: int) -> None:
    for seed in range(number):
        end_well(seed, drawn(seed))


def _remembers_nothing(self: Coordinator) -> None:
    self.lost.clear()
    self._lost_in.clear()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_has_gone_on", lambda self, view, incarnation: False),
        ("_forget_the_lost", _remembers_nothing),
    ],
    ids=["who is forgotten comes back", "reasons are forgotten before they were read"],
)
def test_a_broken_rule_is_found(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., object]) -> None:
    monkeypatch.setattr(Coordinator, name, wrong)
    with pytest.raises(AssertionError):
        all_end_well(300)


def play(group: PlayedGroup, steps: list[tuple[str, int]]) -> None:
    for what, rank in steps:
        if what == "start":
            group.start(rank)
        elif what in ("wait", "short"):
            group.sim.run(until_s=group.sim.clock.now_s() + (2.0 if what == "wait" else 0.01 * (rank + 1)))
        for worker in group.living(rank):
            if what == "kill":
                worker.go(killed=True)
            elif what == "leave" and not worker.frozen:
                worker.leave()
            elif what == "reset" and worker.link is not None:
                worker.link.reset()
            elif what == "freeze":
                worker.freeze()
            elif what == "wake" and worker.frozen:
                worker.wake(reads_all=group.sim.chance.random() < 0.5)
    for worker in group.living():
        if worker.frozen:
            worker.wake(reads_all=group.sim.chance.random() < 0.5)


@given(STEPS, st.integers(0, 2**20))
def test_a_static_group_agrees_in_the_end_when_all_were_started_again(steps: list[tuple[str, int]], seed: int) -> None:
    group = PlayedGroup(seed, RANKS)
    for rank in range(RANKS):
        group.start(rank)
    play(group, steps)
    for _ in range(3):  # who was just leaving has gone by the second time
        for rank in range(RANKS):
            group.start(rank)
        group.sim.run(until_s=group.sim.clock.now_s() + LONG_S)
    agree(group)
    assert len(group.living()) == RANKS


@given(
    st.lists(st.tuples(st.integers(0, RANKS - 1), st.floats(0.0, 0.5)), max_size=RANKS - 1),
    st.lists(st.floats(0.0, 0.5), min_size=RANKS, max_size=RANKS),
    st.integers(0, 2**20),
)
def test_the_shutdown_of_a_static_group_ends_whoever_dies_in_it(
    deaths: list[tuple[int, float]], arrivals: list[float], seed: int
) -> None:
    group = PlayedGroup(seed, RANKS)
    for rank in range(RANKS):
        group.start(rank)
    group.sim.run(until_s=10.0)
    agree(group)
    for rank, after_s in enumerate(arrivals):
        worker = group.living(rank)[0]
        group.sim.after(after_s, lambda worker=worker: worker.alive and worker.arrive())  # type: ignore[misc]
    for rank, after_s in deaths:
        worker = group.living(rank)[0]
        group.sim.after(after_s, lambda worker=worker: worker.go(killed=True))  # type: ignore[misc]
    group.sim.run(until_s=10.0 + LONG_S)
    assert group.living() == []
    assert all(worker.over or worker in group.killed for worker in group.workers.values())


@pytest.mark.parametrize("seed", range(20))
def test_the_coordinator_may_die_at_any_moment_of_the_shutdown(seed: int) -> None:
    group = PlayedGroup(seed, RANKS)
    for rank in range(RANKS):
        group.start(rank)
    group.sim.run(until_s=10.0)
    for worker in group.living():
        worker.arrive()
    for victim in range(3):
        coordinator = group.holder
        group.sim.run(until_s=10.0 + (seed + 1) * 0.02 * (victim + 1))
        if coordinator is not None and coordinator.alive:
            coordinator.go(killed=True)
    group.sim.run(until_s=10.0 + LONG_S)
    assert group.living() == []
