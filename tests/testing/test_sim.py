"""The simulated network does what it says."""

import pytest
from sim import Address, Sim


def listening(sim: Sim, address: Address) -> list[object]:
    heard: list[object] = []
    sim.join(address, lambda sender, message: heard.append((sender, message)))
    return heard


def test_messages_arrive_later_and_overtake_each_other() -> None:
    sim = Sim(1)
    heard = listening(sim, "a")
    for number in range(20):
        sim.send("b", "a", number)
    assert heard == []
    sim.run(until_s=1.0)
    assert sorted(heard) == [("b", number) for number in range(20)] != heard  # type: ignore[type-var]  # pairs
    assert sim.clock.now_s() == 1.0


def test_messages_are_lost_and_doubled_reliable_ones_are_not() -> None:
    sim = Sim(1, loss=0.3, doubles=0.3)
    heard = listening(sim, "a")
    for _ in range(1000):
        sim.send("b", "a", "maybe")
        sim.send("b", "a", "surely", reliably=True)
    sim.run(until_s=1.0)
    assert heard.count(("b", "surely")) == 1000
    assert heard.count(("b", "maybe")) == 1000 - sim.happened["lost"] + sim.happened["doubled"]
    assert 200 < sim.happened["lost"] < 400 and 100 < sim.happened["doubled"] < 300


def test_nothing_passes_a_cut_and_reliable_messages_wait_for_its_end() -> None:
    sim = Sim(1)
    heard = listening(sim, "a")
    sim.cut("a", "b")
    sim.send("b", "a", 1)
    sim.send("b", "a", 2, reliably=True)
    sim.send("c", "a", 3)
    sim.run(until_s=1.0)
    assert heard == [("c", 3)]
    sim.mend("a", "b")
    sim.run(until_s=2.0)
    assert heard == [("c", 3), ("b", 2)]


def test_who_has_crashed_hears_nothing_and_its_address_is_free() -> None:
    sim = Sim(1)
    before = listening(sim, "a")
    with pytest.raises(ValueError, match="there is a peer at 'a' already"):
        listening(sim, "a")
    sim.crash("a")
    assert not sim.is_there("a")
    after = listening(sim, "a")
    sim.send("b", "a", 1)
    sim.run(until_s=1.0)
    assert (before, after) == ([], [("b", 1)])


def test_timers_fire_in_order_of_time() -> None:
    sim = Sim(1)
    fired: list[float] = []
    for delay_s in (3.0, 1.0, 2.0):
        sim.after(delay_s, lambda delay_s=delay_s: fired.append(delay_s))  # type: ignore[misc]  # a default binds
    sim.run(until_s=2.5)
    assert fired == [1.0, 2.0]
    assert sim.step() and not sim.step()
