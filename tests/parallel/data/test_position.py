"""Where a training is: a resumed one sees what the first one had left, in the same order, and nothing twice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.parallel.data.position import DataPosition, Pass
from fanwise.tensor.random.keys import Key

Seen = tuple[int, int, int, Key]  # loop, epoch, sample's place, key of the order


class Stop(Exception):
    """The process ends here."""


class Training:
    """A program with two loops of epochs and two passes in each epoch. It is saved and ended after so many steps."""

    def __init__(self, position: DataPosition, end_after: int, lengths: tuple[int, int] = (7, 4)) -> None:
        self.position = position
        self.seen: list[Seen] = []
        self._left = end_after
        self._lengths = lengths
        self.saved: dict[str, Any] = {}  # Any: as `state` gives

    def main(self) -> None:
        for loop, epochs in enumerate((2, 1)):
            for epoch in self.position.epochs(epochs):
                for length, size in zip(self._lengths, (3, 2), strict=True):
                    started = self.position.begin_pass(length)
                    for samples in started.ranges(size, drop_last=False):
                        self.step(loop, epoch, samples, started)
        self.saved = self.position.state()

    def step(self, loop: int, epoch: int, samples: range, started: Pass) -> None:
        if self._left == 0:
            self.saved = self.position.state()
            raise Stop
        self._left -= 1
        self.position.mark_used()
        self.seen += [(loop, epoch, place, started.key) for place in samples]


def run(training: Training) -> Training:
    try:
        training.main()
    except Stop:
        pass
    return training


WHOLE = run(Training(DataPosition(5), end_after=1000)).seen


@given(ends=st.lists(st.integers(0, 6), max_size=6))
def test_a_training_in_pieces_sees_what_one_piece_sees(ends: list[int]) -> None:
    seen: list[Seen] = []
    saved = None
    for end in [*ends, 1000]:
        piece = run(Training(DataPosition(5, resumed=saved), end_after=end))
        seen, saved = seen + piece.seen, piece.saved
    assert seen == WHOLE


def test_every_sample_comes_once_in_each_pass() -> None:
    samples = [(loop, epoch, key) for loop, epoch, _, key in WHOLE]
    assert len(WHOLE) == 3 * (7 + 4) == len(set(WHOLE))
    assert len(set(samples)) == 6  # each pass has an order of its own
    assert len({key for _, _, key in samples}) == 6


def test_another_seed_gives_another_order() -> None:
    assert DataPosition(1).begin_pass(3).key != DataPosition(2).begin_pass(3).key
    assert DataPosition(1).begin_pass(3).key == DataPosition(1).begin_pass(3).key


def test_a_batch_counts_when_a_step_used_it_or_the_next_one_is_asked_for() -> None:
    position = DataPosition(0)
    started = position.begin_pass(5)
    samples = started.ranges(2, drop_last=False)
    next(samples)
    assert position.state()["passes"][0]["done"] == 0
    position.mark_used()
    assert position.state()["passes"][0]["done"] == 2
    next(samples)
    next(samples)
    assert position.state()["passes"][0]["done"] == 4


def test_after_its_batches_an_epoch_is_over() -> None:
    position = DataPosition(0)
    epochs = position.epochs(3)
    next(epochs)
    list(position.begin_pass(4).ranges(2, drop_last=False))
    assert list(DataPosition(0, resumed=position.state()).epochs(3)) == [1, 2]


def test_a_loop_that_was_left_by_break_is_over() -> None:
    position = DataPosition(0)
    for _ in position.epochs(5):
        break
    state = position.state()
    again = DataPosition(0, resumed=state)
    assert list(again.epochs(5)) == []
    assert list(again.epochs(2)) == [0, 1]


def test_what_is_saved_before_the_place_is_reached_is_the_place() -> None:
    training = run(Training(DataPosition(5), end_after=6))
    again = DataPosition(5, resumed=training.saved)
    assert again.state() == training.saved
    epochs = again.epochs(2)
    next(epochs)
    assert again.state() == training.saved


def test_a_pass_over_another_length_is_not_resumed() -> None:
    saved = run(Training(DataPosition(5), end_after=1)).saved
    with pytest.raises(ValueError, match=r"the data set has 8 samples.*but had 7 .* in epoch 0 after 3 samples"):
        run(Training(DataPosition(5, resumed=saved), end_after=5, lengths=(8, 4)))


def test_an_incomplete_batch_is_left_out_on_request() -> None:
    started = Pass(7, Key(0))
    assert list(started.ranges(3, drop_last=True)) == [range(3), range(3, 6)]
    assert started.is_finished
    assert list(Pass(7, Key(0)).ranges(3, drop_last=False)) == [range(3), range(3, 6), range(6, 7)]
