"""A peer in a process of its own decides in our simulator: who starts, waits, pauses, goes on and is stopped."""

import sys
from pathlib import Path

import pytest
from searchers_parts.methods import METHODS, Method
from searchers_parts.peers import PEERS, PeerScheduler
from simulated_attempts import SimulatedAttempts

from fanwise.tune import StoppingCriterion, uniform
from fanwise.tune.simulate import FunctionTable, SimulatedSearch, simulate

# A peer whose decisions are written down: each trial gets its own number and that of the workers as its configuration.
# Trial 0 is paused at epoch 1, and goes on when trial 1 has been stopped at epoch 2; until then the other worker waits.
PEER = f"""
import sys

sys.path.insert(0, {str(PEERS)!r})
from searchers_lines import serve


class Search:
    def __init__(self, settings):
        print("a peer may print what it likes")
        assert settings["method"] == "written down" and settings["max_resource"] == 4, settings
        assert settings["space"] == {{"x": ["uniform", {{"lower": 0, "upper": 9}}]}}, settings
        self.n_workers, self.begun, self.goes_on = settings["n_workers"], 0, False

    def suggest(self, trial):
        if self.begun < 2:
            self.begun += 1
            return {{"x": float(trial + self.n_workers)}}
        goes_on, self.goes_on = self.goes_on, False
        return 0 if goes_on else None

    def report(self, trial, resource, loss):
        if (trial, resource) == (0, 1):
            return "PAUSE"
        return "STOP" if (trial, resource) == (1, 2) else "CONTINUE"

    def end(self, trial):
        self.goes_on = trial == 1


serve(Search)
"""


def play(peer: str, folder: Path) -> tuple[SimulatedSearch, PeerScheduler, SimulatedAttempts]:
    """One search of ten virtual seconds with two workers: an epoch takes a second, the loss is x + 1 / epoch."""
    program = folder / "peer.py"
    program.write_text(peer)
    table = FunctionTable(
        lambda config, epoch: ({"loss": config["x"] + 1 / epoch, "epoch": epoch}, 1.0),  # type: ignore[operator]
        {"x": uniform(0, 9), "max_epochs": 4},
    )
    scheduler = PeerScheduler(
        Path(sys.executable),
        str(program),
        "written down",
        metric="loss",
        mode="min",
        resource_attr="epoch",
        max_resource=4,
        n_workers=2,
    )
    try:
        stop = StoppingCriterion(max_wallclock_time=10)
        attempts = SimulatedAttempts()
        return simulate(scheduler, table, stop, n_workers=2, on_event=attempts.add), scheduler, attempts
    finally:
        scheduler.close()


def test_a_peer_pauses_a_trial_and_goes_on_with_it_when_it_says_so(tmp_path: Path) -> None:
    _, _, attempts = play(PEER, tmp_path)
    rows = [(attempt.trial_id, attempt.start_s, attempt.from_iter, attempt.iter) for attempt in attempts.ended]
    # trial 0 begins, trial 1 begins and is stopped at 2 s; from then on trial 0 runs from where it was, to its end
    assert rows == [(0, 0.0, 0, 1), (1, 0.0, 0, 2), (0, 2.0, 1, 4)]


def test_a_peer_is_told_how_many_workers_there_are(tmp_path: Path) -> None:
    found, _, _ = play(PEER, tmp_path)
    assert found.best is not None and found.best.config["x"] == 2.0  # trial 0 with 2 workers


def test_suggestions_are_timed_and_a_word_to_wait_or_to_go_on_is_not(tmp_path: Path) -> None:
    _, scheduler, _ = play(PEER, tmp_path)
    assert len(scheduler.suggest_s) == 2


def test_a_word_that_is_none_of_the_three_ends_the_search(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'HALT' is not a valid Decision"):
        play(PEER.replace('return "PAUSE"', 'return "HALT"'), tmp_path)


def test_a_peer_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    broken = PEER.replace('return "PAUSE"', 'raise RuntimeError("out of ideas")')
    with pytest.raises(RuntimeError, match=r"peer\.py ended at written down: RuntimeError: out of ideas"):
        play(broken, tmp_path)


@pytest.mark.parametrize("method", [one for one in METHODS if one.peer is not None], ids=lambda one: one.name)
def test_a_peer_has_its_program_and_the_pins_of_its_environment(method: Method) -> None:
    assert method.peer is not None
    environment, program, _ = method.peer
    assert (PEERS / program).exists()
    pins = (PEERS / f"{environment}.txt").read_text().splitlines()
    assert all(line.count("==") == 1 for line in pins)
