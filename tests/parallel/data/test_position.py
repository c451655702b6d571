"""A resumed training continues with the next sample, in the same order."""

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
    """A program with two loops of epochs and two passes in each epoch. It is saved and ended after some steps."""

    def __init__(self, position: DataPosition, end_after: int, lengths: tuple[int, int] = (7, 4)) -> None:
        self.position = position
        self.seen: list[Seen] = []
        self._left = end_after
        self._lengths = lengths
        self.saved: dict[str, Any] = {}  # from `state`

    def main(self) -> None:
        for loop, epochs in enumerate((2, 1)):
            for epoch in self.position.epochs(epochs):
                for length, size in zip(self._lengths, (3, 2), strict=True):
                    data_pass = self.position.begin_pass(length)
                    for samples in data_pass.ranges(size, drop_last=False):
                        self.step(loop, epoch, samples, data_pass)
        self.saved = self.position.state()

    def step(self, loop: int, epoch: int, samples: range, data_pass: Pass) -> None:
        if self._left == 0:
            self.saved = self.position.state()
            raise Stop
        self._left -= 1
        self.position.mark_used()
        self.seen += [(loop, epoch, place, data_pass.key) for place in samples]


def run(training: Training) -> Training:
    try:
        training.main()
    except Stop:
        pass
    return training


WHOLE = run(Training(DataPosition(5), end_after=1000)).seen


@given(ends=st.lists(st.integers(0, 6), max_size=6))
def test_a_training_in_pieces_sees_the_samples_of_an_uninterrupted_one(ends: list[int]) -> None:
    seen: list[Seen] = []
    saved = None
    for end in [*ends, 1000]:
        piece = run(Training(DataPosition(5, resumed=saved), end_after=end))
        seen, saved = seen + piece.seen, piece.saved
    assert seen == WHOLE


def test_a_loop_that_was_left_by_break_is_complete() -> None:
    position = DataPosition(0)
    for _ in position.epochs(5):
        break
    state = position.state()
    resumed_position = DataPosition(0, resumed=state)
    assert list(resumed_position.epochs(5)) == []
    assert list(resumed_position.epochs(2)) == [0, 1]


def test_a_state_saved_before_the_resumed_position_is_that_position() -> None:
    training = run(Training(DataPosition(5), end_after=6))
    resumed_position = DataPosition(5, resumed=training.saved)
    assert resumed_position.state() == training.saved
    epochs = resumed_position.epochs(2)
    next(epochs)
    assert resumed_position.state() == training.saved


def test_a_pass_over_another_length_is_not_resumed() -> None:
    saved = run(Training(DataPosition(5), end_after=1)).saved
    with pytest.raises(ValueError, match=r"the data set has 8 samples.*but had 7 .* in epoch 0 after 3 samples"):
        run(Training(DataPosition(5, resumed=saved), end_after=5, lengths=(8, 4)))
