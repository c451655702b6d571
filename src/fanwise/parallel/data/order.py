"""Where a training is, and in which order samples come. A quiet file: it counts, and makes keys.

    phase 0: before the first run.epochs loop      phase 1: in it      phase 2: after it      phase 3: in the next
      epoch 0, 1, 2 ...                            (0 where there is no loop)
        pass 0, 1 ...                              one for each call of run.batches in that epoch
          done: samples that steps have used

The order of a pass is drawn from (seed, phase, epoch, pass), so these few numbers are all that a checkpoint needs
to go on with the next sample, whatever came before: nothing is skipped over or drawn again.

A batch counts as done when a step has used it, or when the loop asks for the next one. So a checkpoint made in the
body of a loop holds this batch if it was made after the step, and not if before.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...tensor.random.keys import Key


@dataclass(slots=True)
class Pass:
    """One pass over a data set: `run.batches` called once.

    Args:
        length: samples of the data set; None: nobody knows before, it is a stream.
        key: the order of the samples comes from it.
        done: samples that are done with; where the pass begins. stream: the state that a stream has there.
    """

    length: int | None
    key: Key
    done: int = 0
    stream: Any = None  # Any: of a stream's own making
    finished: bool = False
    ahead: int | None = None  # the end of the batch that the loop has in hand
    stream_ahead: Any = None  # Any: the state of a stream after that batch
    used: bool = False  # whether a step used that batch

    def batches(self, batch_size: int, drop_last: bool) -> Iterator[range]:
        """The places in the order that each batch takes, from where the pass begins."""
        while not self.finished:
            places = self.places(self.done, batch_size, drop_last)
            if places is None:
                self.finished = True
                return
            self.takes(places.stop)
            yield places
            self.passes_on()

    def takes(self, end: int, stream: Any = None) -> None:  # Any: as above
        """The loop has the batch in hand that ends there."""
        self.ahead, self.stream_ahead, self.used = end, stream, False

    def passes_on(self) -> None:
        """It asks for the next one."""
        assert self.ahead is not None, "it has one in hand"
        self.done, self.stream, self.ahead, self.stream_ahead = self.ahead, self.stream_ahead, None, None

    def places(self, start: int, batch_size: int, drop_last: bool) -> range | None:
        """The places that the batch beginning at `start` takes; None if there is no such batch."""
        assert self.length is not None, "a stream has no places"
        stop = min(start + batch_size, self.length)
        return None if stop <= start or (drop_last and stop - start < batch_size) else range(start, stop)

    def is_last(self, places: range, batch_size: int, drop_last: bool) -> bool:
        """Whether no batch comes after this one."""
        assert self.length is not None, "a stream has no places"
        left = self.length - places.stop
        return left < batch_size if drop_last else left == 0

    def state(self) -> dict[str, Any]:  # Any: numbers and a bool
        done, stream = (
            (self.ahead, self.stream_ahead) if self.used and self.ahead is not None else (self.done, self.stream)
        )
        state = {"length": self.length, "done": done, "finished": self.finished}
        return state if stream is None else state | {"stream": stream}


@dataclass(slots=True)
class Progress:
    """The place of a training in its data. `resumed` is the place that a checkpoint gave, until it is reached."""

    seed: int
    phase: int = 0
    epoch: int = 0
    passes: list[Pass] = field(default_factory=list)
    resumed: Mapping[str, Any] | None = None  # Any: as `state` gives

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs of one loop, from where a checkpoint ended."""
        self._enter(self.phase + 1)
        first = 0
        if self.resumed is not None and self.resumed["phase"] >= self.phase:
            ahead = self.resumed["phase"] > self.phase
            first = count if ahead else self._first_epoch(self.resumed)
        try:
            for epoch in range(first, count):
                self.epoch, self.passes = epoch, []
                yield epoch
        finally:  # also when the loop is left by `break`
            self._enter(self.phase + 1)

    def _enter(self, phase: int) -> None:
        self.phase, self.epoch, self.passes = phase, 0, []

    def _first_epoch(self, resumed: Mapping[str, Any]) -> int:  # Any: as `state` gives
        passes = resumed["passes"]
        over = bool(passes) and all(each["finished"] for each in passes)
        if over:
            self.resumed = None  # the epoch after that begins at its beginning
        return int(resumed["epoch"]) + int(over)

    def begin_pass(self, length: int | None) -> Pass:
        """`run.batches` was called.

        Raises:
            ValueError: the data set had another length when the checkpoint was made.
        """
        number = len(self.passes)
        key = Key(self.seed).fold_in("order").fold_in(self.phase).fold_in(self.epoch).fold_in(number)
        begun = Pass(length, key)
        self.passes.append(begun)
        if self.resumed is not None:
            self._take_up(begun, number, self.resumed)
        return begun

    def _take_up(self, begun: Pass, number: int, resumed: Mapping[str, Any]) -> None:  # Any: as `state` gives
        if resumed["phase"] > self.phase:
            begun.finished = True
        elif (resumed["phase"], resumed["epoch"]) == (self.phase, self.epoch) and number < len(resumed["passes"]):
            then = resumed["passes"][number]
            if then["length"] != begun.length and not then["finished"]:
                raise ValueError(
                    f"the data set has {begun.length} samples; when the checkpoint was made, in epoch {self.epoch} "
                    f"after {then['done']} samples, it had {then['length']}.\n"
                    f"Its order would be another one. Resume with the same data set."
                )
            begun.done, begun.finished, begun.stream = then["done"], then["finished"], then.get("stream")

    def used(self) -> None:
        """A step used the batches that are in hand."""
        for each in self.passes:
            each.used = each.ahead is not None

    @property
    def is_in_epochs(self) -> bool:
        """Whether the program is inside a loop over `run.epochs`."""
        return self.phase % 2 == 1

    @property
    def has_begun(self) -> bool:
        """Whether a loop was entered or a pass begun: too late to resume."""
        return self.phase > 0 or bool(self.passes)

    def state(self) -> dict[str, Any]:  # Any: numbers, and lists and dicts of them
        passes = [each.state() for each in self.passes]
        if self.resumed is not None:
            then = (self.resumed["phase"], self.resumed["epoch"])
            if then > (self.phase, self.epoch):
                return dict(self.resumed)  # not there yet
            if then == (self.phase, self.epoch):
                passes += self.resumed["passes"][len(passes) :]
        return {"phase": self.phase, "epoch": self.epoch, "passes": passes}
