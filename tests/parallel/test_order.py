"""Where a training is: a resumed one sees what the first one had left, in the same order, and nothing twice."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanwise.parallel.data.order import Pass, Progress
from fanwise.tensor.random.keys import Key

Seen = tuple[int, int, int, Key]  # loop, epoch, sample's place, key of the order


class Stop(Exception):
    """The process ends here."""


class Training:
    """A program with two loops of epochs and two passes in each epoch. It is saved and ended after so many steps."""

    def __init__(self, progress: Progress, end_after: int, lengths: tuple[int, int] = (7, 4)) -> None:
        self.progress = progress
        self.seen: list[Seen] = []
        self._left = end_after
        self._lengths = lengths
        self.saved: dict[str, Any] = {}  # Any: as `state` gives

    def main(self) -> None:
        for loop, epochs in enumerate((2, 1)):
            for epoch in self.progress.epochs(epochs):
                for length, size in zip(self._lengths, (3, 2), strict=True):
                    begun = self.progress.begin_pass(length)
                    for places in begun.batches(size, drop_last=False):
                        self.step(loop, epoch, places, begun)
        self.saved = self.progress.state()

    def step(self, loop: int, epoch: int, places: range, begun: Pass) -> None:
        if self._left == 0:
            self.saved = self.progress.state()
            raise Stop
        self._left -= 1
        self.progress.used()
        self.seen += [(loop, epoch, place, begun.key) for place in places]


def run(training: Training) -> Training:
    try:
        training.main()
    except Stop:
        pass
    return training


WHOLE = run(Training(Progress(5), end_after=1000)).seen


@given(ends=st.lists(st.integers(0, 6), max_size=6))
def test_a_training_in_pieces_sees_what_one_piece_sees(ends: list[int]) -> None:
    seen: list[Seen] = []
    saved = None
    for end in [*ends, 1000]:
        piece = run(Training(Progress(5, resumed=saved), end_after=end))
        seen, saved = seen + piece.seen, piece.saved
    assert seen == WHOLE


def test_every_sample_comes_once_in_each_pass() -> None:
    places = [(loop, epoch, key) for loop, epoch, _, key in WHOLE]
    assert len(WHOLE) == 3 * (7 + 4) == len(set(WHOLE))
    assert len(set(places)) == 6  # each pass has an order of its own
    assert len({key for _, _, key in places}) == 6


def test_another_seed_gives_another_order() -> None:
    assert Progress(1).begin_pass(3).key != Progress(2).begin_pass(3).key
    assert Progress(1).begin_pass(3).key == Progress(1).begin_pass(3).key


def test_a_batch_counts_when_a_step_used_it_or_the_next_one_is_asked_for() -> None:
    progress = Progress(0)
    begun = progress.begin_pass(5)
    places = begun.batches(2, drop_last=False)
    next(places)
    assert progress.state()["passes"][0]["done"] == 0
    progress.used()
    assert progress.state()["passes"][0]["done"] == 2
    next(places)
    next(places)
    assert progress.state()["passes"][0]["done"] == 4


def test_after_its_batches_an_epoch_is_over() -> None:
    progress = Progress(0)
    epochs = progress.epochs(3)
    next(epochs)
    list(progress.begin_pass(4).batches(2, drop_last=False))
    assert list(Progress(0, resumed=progress.state()).epochs(3)) == [1, 2]


def test_a_loop_that_was_left_by_break_is_over() -> None:
    progress = Progress(0)
    for _ in progress.epochs(5):
        break
    state = progress.state()
    again = Progress(0, resumed=state)
    assert list(again.epochs(5)) == []
    assert list(again.epochs(2)) == [0, 1]


def test_what_is_saved_before_the_place_is_reached_is_the_place() -> None:
    training = run(Training(Progress(5), end_after=6))
    again = Progress(5, resumed=training.saved)
    assert again.state() == training.saved
    epochs = again.epochs(2)
    next(epochs)
    assert again.state() == training.saved


def test_a_pass_over_another_length_is_not_resumed() -> None:
    saved = run(Training(Progress(5), end_after=1)).saved
    with pytest.raises(ValueError, match=r"the data set has 8 samples.*in epoch 0 after 3 samples, it had 7"):
        run(Training(Progress(5, resumed=saved), end_after=5, lengths=(8, 4)))


def test_an_incomplete_batch_is_left_out_on_request() -> None:
    begun = Pass(7, Key(0))
    places = list(begun.batches(3, drop_last=True))
    assert places == [range(3), range(3, 6)]
    assert [begun.is_last(each, 3, True) for each in places] == [False, True]
    assert [begun.is_last(each, 3, False) for each in (range(3, 6), range(6, 7))] == [False, True]
    assert begun.finished
